"""Rules about several keys at once, which the type of no single key states."""

from __future__ import annotations

import math
from typing import get_args

from k2jax.config.activations import check_activations
from k2jax.config.schema import (
    BANDS,
    CONVERSATIONS,
    IMAGE_SOURCES,
    TRAJECTORIES,
    Config,
    ImagesConfig,
    ModelConfig,
    PolicyLossConfig,
    RLConfig,
    SandboxKind,
)
from k2jax.errors import UserError, nearest

TOKEN_LOSSES = ("k2.5", "reinforce")
"""Policy losses whose ratio, advantage and mean are of tokens."""


def check_combinations(config: Config) -> None:
    """Rejects combinations of values that cannot be run.

    Raises:
        UserError: in one line that names the keys.
    """
    for key, entries in (("data.sources", config.data.sources), ("rl.tasks", config.rl.tasks)):
        if not entries:
            raise UserError(f"config.{key} is empty: name at least one")
    _check_layers(config.model)
    _check_micro_batches(config)
    _check_attention(config)
    _check_rope(config.model)
    _check_vision(config)
    _check_exchange(config)
    check_activations(config)
    _check_router(config.model)
    _check_policy_loss(config.rl.loss)
    _check_distillation(config.rl)
    _check_roles(config.rl)
    _check_routing(config)
    if config.rl.rollout.publish_listen and not config.rl.rollout.publish:
        raise UserError("config.rl.rollout.publish_listen gives what config.rl.rollout.publish keeps; set that, too")
    _check_sandboxes(config.rl)
    _check_sources(config)
    for name, task in config.rl.tasks.items():
        if len(task.pass_band) != 2 or task.pass_band[0] > task.pass_band[1]:
            raise UserError(
                f"config.rl.tasks.{name}.pass_band {task.pass_band} must be the least and the largest pass rate, e.g. "
                "(0.1, 0.9)"
            )
    profile = config.train.profile_steps
    if profile and not (len(profile) == 2 and 1 <= profile[0] <= profile[1]):
        raise UserError("config.train.profile_steps must be (first, last), e.g. (10, 12)")


def check_unread(config: Config) -> None:
    """Rejects keys that a run of reinforcement learning does not read; 0 turns samples of text off, which has none.

    Raises:
        UserError: in one line that names the key.
    """
    unread = [f"eval.{name}" for name in ("rows", "final_rows", "by_source", "sample_temperature", "prompts")]
    unread += ["train.patience", *(["eval.sample_tokens"] if config.eval.sample_tokens else [])]
    for key in unread:
        group, _, name = key.partition(".")
        value, default = getattr(getattr(config, group), name), getattr(getattr(Config(), group), name)
        if value != default:
            raise UserError(
                f"config.{key} {value!r} is for stages pretrain and sft; reinforcement learning evaluates on held-out "
                "tasks (eval.every, rl.eval_prompts, rl.eval_samples)"
            )


def _check_sources(config: Config) -> None:
    """Rules about the kinds of sources of a stage that trains on them."""
    conversations = [name for name, source in config.data.sources.items() if source.kind in CONVERSATIONS]
    images = [name for name, source in config.data.sources.items() if source.kind in IMAGE_SOURCES]
    texts = [name for name in config.data.sources if name not in conversations + images]
    if config.stage == "sft" and texts:
        raise UserError(
            f"config.data.sources.{texts[0]}.kind is {config.data.sources[texts[0]].kind!r}, and stage sft trains on "
            f"{', '.join((*CONVERSATIONS, *IMAGE_SOURCES))}; set its kind and path"
        )
    if config.stage == "pretrain" and conversations:
        raise UserError(
            f"config.data.sources.{conversations[0]}.kind is {config.data.sources[conversations[0]].kind!r}, which is "
            "for stage sft"
        )
    if conversations and config.data.tokenizer.kind == "bpe":
        raise UserError(
            "config.data.tokenizer.kind bpe is trained on texts, which conversations are not; set it to file and "
            "config.data.tokenizer.path to the checkpoint that init_from names"
        )
    if images and not config.model.vision.layers:
        raise UserError(
            f"config.data.sources.{images[0]} has images, and config.model.vision.layers is 0; take a tower, e.g. "
            "vision_preset('nano_vision')"
        )
    _check_vision_share(config.data.images, bool(images), len(images) < len(config.data.sources))
    if config.data.images.patches % 4:
        raise UserError(f"config.data.images.patches {config.data.images.patches} is no multiple of 4")
    for name, source in config.data.sources.items():
        if source.exclude and source.kind != "jsonl":
            raise UserError(f"config.data.sources.{name}.exclude is for the kind jsonl, not {source.kind}")
        if source.filters and source.kind not in TRAJECTORIES:
            raise UserError(
                f"config.data.sources.{name}.filters are for the kinds {' and '.join(TRAJECTORIES)}, not {source.kind}"
            )
        if source.media_from and source.kind != "image_chat":
            raise UserError(f"config.data.sources.{name}.media_from is for the kind image_chat, not {source.kind}")
        if source.kind == "shards" and source.max_documents:
            raise UserError(f"config.data.sources.{name}.max_documents is not for the kind shards, which is read whole")
        if source.kind == "shards" and config.data.tokenizer.kind == "bpe":
            raise UserError(
                f"config.data.sources.{name} is tokenised already: set config.data.tokenizer.kind to file and "
                "config.data.tokenizer.path to its tokenizer"
            )


def _check_vision_share(images: ImagesConfig, visual: bool, textual: bool) -> None:
    """Rules about phases, given whether there are sources with images, and of text."""
    share, starts = images.share, images.share_from
    if not share:
        return
    if len(share) != len(starts) or starts[0] or list(starts) != sorted(set(starts)):
        raise UserError(
            f"config.data.images.share_from {starts} must ascend from 0.0, with one number for each of the "
            f"{len(share)} of data.images.share"
        )
    for wanted, given, kind in ((max(share) > 0, visual, "with images"), (min(share) < 1, textual, "of text")):
        if wanted and not given:
            raise UserError(f"config.data.images.share {share} needs a source {kind}, and config.data.sources has none")


def _check_layers(model: ModelConfig) -> None:
    if model.dense_layers > model.layers:
        raise UserError(f"config.model.dense_layers {model.dense_layers} is not in 0..{model.layers} (model.layers)")


def _check_vision(config: Config) -> None:
    model = config.model
    vision = model.vision
    if config.optimizer.frozen and not vision.layers:
        raise UserError("config.optimizer.frozen names parts of a model with vision, and model.vision.layers is 0")
    if vision.contrast != (config.train.contrast.weight > 0):
        raise UserError(
            f"config.model.vision.contrast {vision.contrast} and train.contrast.weight {config.train.contrast.weight} "
            "go together: both are on, or neither"
        )
    parallel = config.parallel
    images = config.data.images
    if config.stage == "rl" and (images.rows, images.each) != (1, 1):
        raise UserError(
            f"config.data.images.rows {images.rows:g} and rows_each {images.rows_each} are for stages pretrain and "
            "sft, as all rows of rl may have images; set them to 1 and 0"
        )
    if images.each < images.rows:
        raise UserError(
            f"config.data.images.rows {images.rows:g} is above data.images.rows_each {images.rows_each}: rows of the "
            "tower would always be empty; raise rows_each, or set it to 0"
        )
    if images.each > (rows := math.ceil(config.train.batch_size * images.rows)):
        raise UserError(
            f"config.data.images.rows {images.rows:g} of train.batch_size {config.train.batch_size} are {rows} rows of "
            f"the tower, and one row of tokens may fill {images.each}: lower data.images.rows_each or raise rows"
        )
    if vision.contrast and (config.stage == "rl" or max(parallel.stage, parallel.tensor, parallel.context) > 1):
        raise UserError(
            "config.model.vision.contrast is for stages pretrain and sft, on parallel.data and parallel.expert alone: "
            "a device has whole captions"
        )
    if config.init_tower_from and not vision.layers:
        raise UserError("config.init_tower_from names a tower, and model.vision.layers is 0")
    if len(set(config.optimizer.frozen)) == 3:
        raise UserError("config.optimizer.frozen names all parts: nothing is left to learn")
    if vision.layers and vision.width % (4 * vision.heads):
        raise UserError(
            f"config.model.vision.width {vision.width} does not divide into {vision.heads} heads of a multiple of 4"
        )


def _check_micro_batches(config: Config) -> None:
    train = config.train
    rows = -(-train.batch_size // train.micro_batches)
    if rows * (train.micro_batches - 1) >= train.batch_size:
        raise UserError(
            f"config.train.batch_size {train.batch_size} leaves the last of {train.micro_batches} micro-batches empty; "
            f"train.micro_batches={-(-train.batch_size // rows)} would do"
        )


def _check_router(model: ModelConfig) -> None:
    moe = model.moe
    if moe.experts % moe.expert_groups:
        raise UserError(
            f"config.model.moe.experts {moe.experts} does not divide into {moe.expert_groups} expert_groups"
        )
    reachable = moe.experts // moe.expert_groups * moe.active_groups
    if moe.active_groups > moe.expert_groups or moe.active_experts > reachable:
        raise UserError(
            f"config.model.moe.active_experts {moe.active_experts} cannot be chosen from {reachable} experts: "
            f"{moe.active_groups} of {moe.expert_groups} groups of {moe.experts // moe.expert_groups}"
        )


def _check_exchange(config: Config) -> None:
    """Rules about the way of tokens to the experts of other devices."""
    parallel = config.parallel
    if parallel.expert_slots < 1 and parallel.expert_backend == "dense":
        raise UserError(
            f"config.parallel.expert_slots {parallel.expert_slots} drops nothing with expert_backend dense, which "
            "sends all tokens to all devices; take auto or a2a"
        )


def _check_attention(config: Config) -> None:
    _ATTENTION_CHECKS[config.model.attention](config)
    for key in ("qkv_bias", "qk_norm"):
        if getattr(config.model.gqa, key) and config.model.attention != "gqa":
            raise UserError(f"config.model.gqa.{key} needs config.model.attention gqa, not {config.model.attention}")


def _check_mla(config: Config) -> None:
    _check_even("mla.qk_rope_dim", config.model.mla.qk_rope_dim)


def _check_gqa(config: Config) -> None:
    model, gqa = config.model, config.model.gqa
    _check_even("gqa.head_dim", gqa.head_dim)
    if model.heads % gqa.kv_heads:
        raise UserError(f"config.model.heads {model.heads} does not divide into groups for {gqa.kv_heads} kv_heads")
    if gqa.qk_norm and config.optimizer.name == "muonclip":
        raise UserError(
            "config.optimizer.name muonclip cannot clip a model with model.gqa.qk_norm: its queries and keys are "
            "normalised after their projections, so that scaling those changes no logit; use muon"
        )


_ATTENTION_CHECKS = {"mla": _check_mla, "gqa": _check_gqa}


def _check_even(key: str, width: int) -> None:
    if width % 2:
        raise UserError(f"config.model.{key} {width} must be even: rotary positions turn pairs")


def _check_rope(model: ModelConfig) -> None:
    scaled = model.llama3_rope
    if scaled.factor > 1 and model.yarn.factor > 1:
        raise UserError("config.model.yarn.factor and config.model.llama3_rope.factor cannot both be above 1")
    if scaled.factor > 1 and not 0 < scaled.low_freq_factor < scaled.high_freq_factor:
        raise UserError(
            f"config.model.llama3_rope needs 0 < low_freq_factor < high_freq_factor, not {scaled.low_freq_factor}, "
            f"{scaled.high_freq_factor}"
        )


def _check_distillation(rl: RLConfig) -> None:
    """Rules about distillation, where it is on."""
    distill = rl.distill
    if not distill.weight:
        if not distill.rewards:
            raise UserError("config.rl.distill.rewards is False and rl.distill.weight 0: nothing is left to train on")
        return
    if not distill.teachers:
        raise UserError(f"config.rl.distill.weight is {distill.weight} without teachers; set rl.distill.teachers")
    if distill.into == "advantage" and rl.loss.name not in TOKEN_LOSSES:
        raise UserError(
            f"config.rl.distill.into advantage gives every token its own, and the loss {rl.loss.name} has one for a "
            "turn or a response; rl.distill.into=component would do"
        )
    if rl.skip_flat_groups:
        raise UserError(
            "config.rl.skip_flat_groups leaves out responses that a teacher has much to say of; set it to False with "
            "config.rl.distill.weight"
        )


def _check_roles(rl: RLConfig) -> None:
    """Rules about frozen checkpoints beside the policy."""
    for name, role in rl.roles.items():
        if name == "policy":
            raise UserError("config.rl.roles.policy: 'policy' is the model that is trained; choose another name")
        if not role.checkpoint:
            raise UserError(f"config.rl.roles.{name}.checkpoint is empty; name the checkpoint that answers as {name}")
        if role.max_tokens >= rl.rollout.max_length:
            raise UserError(
                f"config.rl.roles.{name}.max_tokens {role.max_tokens} leaves no room for a prompt in "
                f"config.rl.rollout.max_length {rl.rollout.max_length}"
            )
        starts = (1, *role.later_from)
        if len(role.later) != len(role.later_from) or list(starts) != sorted(set(starts)) or not all(role.later):
            raise UserError(
                f"config.rl.roles.{name}.later_from {role.later_from} must ascend from 2, with one iteration for each "
                f"of the {len(role.later)} checkpoints of rl.roles.{name}.later"
            )


def _check_policy_loss(loss: PolicyLossConfig) -> None:
    """Rules about the policy objective, so that no key is without effect."""
    low, high = loss.band
    if loss.name in BANDS and not low < 1 < high:
        raise UserError(
            f"config.rl.loss.ratio_low {low} and ratio_high {high} do not enclose 1, the ratio on policy; leave them "
            f"out for {BANDS[loss.name][0]} and {BANDS[loss.name][1]}"
        )
    for key, is_set, readers in (
        ("ratio_low", loss.ratio_low is not None, tuple(BANDS)),
        ("ratio_high", loss.ratio_high is not None, tuple(BANDS)),
        ("aggregation", loss.aggregation != PolicyLossConfig().aggregation, ("kat", "gspo")),
    ):
        if is_set and loss.name not in readers:
            raise UserError(
                f"config.rl.loss.{key} is read by the losses {', '.join(readers)}, and rl.loss.name is {loss.name}"
            )
    if loss.per_domain and loss.name not in TOKEN_LOSSES:
        raise UserError(
            f"config.rl.loss.per_domain weighs tokens, and the loss {loss.name} counts turns or responses; "
            f"rl.loss.name={' or '.join(TOKEN_LOSSES)} would do"
        )
    _check_corrections(loss)
    if (loss.ptx > 0) != (loss.ptx_rows > 0):
        raise UserError(
            f"config.rl.loss.ptx {loss.ptx} and ptx_rows {loss.ptx_rows} go together: both are above 0, or neither"
        )


def _check_routing(config: Config) -> None:
    """Rules about experts that are recorded at sampling."""
    routing, model = config.rl.rollout.routing, config.model
    if routing != "own" and model.layers == model.dense_layers:
        raise UserError(f"config.rl.rollout.routing is {routing!r}, and the model has no experts; take own")
    if routing == "replay" and config.rl.loss.old != "recompute":
        raise UserError(
            "config.rl.rollout.routing replay needs rl.loss.old=recompute: log pi_old is then what the replayed "
            "experts give in the trainer"
        )
    if routing == "replay" and config.rl.distill.weight:
        raise UserError(
            "config.rl.rollout.routing replay and rl.distill.weight exclude each other: a teacher has experts of its "
            "own; take record"
        )


def _check_sandboxes(rl: RLConfig) -> None:
    """The backend is known; its options are read by who makes it."""
    for key, text in {"rollout": rl.rollout.sandbox, "scoring": rl.scoring.sandbox}.items():
        name, *_ = text.split() or [""]
        if name not in (names := get_args(SandboxKind)):
            raise UserError(f"config.rl.{key}.sandbox is {name!r}{nearest(name, list(names))}")


def _check_corrections(loss: PolicyLossConfig) -> None:
    """Rules about what reads the trainer's own log-probabilities."""
    icepop, mcla = loss.icepop, loss.mcla
    for key, wanted in (("icepop.on", icepop.on), (f"mcla.passes={mcla.passes}", mcla.passes > 1)):
        if wanted and loss.old != "recompute":
            raise UserError(
                f"config.rl.loss.{key} reads the trainer's own log-probabilities; set rl.loss.old=recompute, not "
                f"{loss.old}"
            )
    if not icepop.low <= 1 <= icepop.high:
        raise UserError(
            f"config.rl.loss.icepop.low {icepop.low} and high {icepop.high} do not enclose 1, where the trainer and "
            "the engine agree; 0.5 and 5.0 would do"
        )
