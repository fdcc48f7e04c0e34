"""Process settings that must precede the first use of jax, and checks of what a machine runs."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
from importlib.util import find_spec
import os
from pathlib import Path
import platform
import shutil
import sys
from typing import Any
import warnings

from k2jax.config.schema import Config, ModelConfig
from k2jax.errors import UserError

COMPILED_BYTES = 4 << 30
"""The size at which the oldest compiled programs are forgotten."""
LEAST_FREE_BYTES = 256 << 20


def prepare() -> None:
    """Chooses the platform, keeps compiled programs and, on a CPU, freed memory. Commands call it first."""
    choose_platform()
    keep_compiled_programs()
    if os.environ["JAX_PLATFORMS"] == "cpu":
        keep_freed_memory()


def pause_collection() -> None:
    """Collects no garbage while a command starts: modules, vocabularies and traces stay, and are many.

    The collector would look at all of them again and again, and find nothing.
    """
    gc.disable()


def resume_collection() -> None:
    """Ends the pause of a start, if there is one. What is alive by then is never looked at again."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def prepare_before_jax() -> None:
    """``prepare`` for what is imported from Python, where JAX was not imported before: then it is the caller's."""
    if "jax" not in sys.modules:
        prepare()


def choose_platform() -> None:
    """Sets JAX_PLATFORMS unless the user has: with libtpu but no TPU, jax would print an error first."""
    if any(os.path.exists(path) for path in ("/dev/accel0", "/dev/vfio/0")) or "TPU_NAME" in os.environ:
        _set_default("JAX_PLATFORMS", "tpu,cpu")
    elif os.path.exists("/dev/nvidiactl") and any(find_spec(f"jax_cuda{number}_plugin") for number in (12, 13)):
        _set_default("JAX_PLATFORMS", "cuda,cpu")
    else:
        _set_default("JAX_PLATFORMS", "cpu")


def _set_default(name: str, value: str | float) -> None:
    """Sets a variable of JAX unless the user has. JAX reads them when it is imported, and that may have happened."""
    if name not in os.environ:
        os.environ[name] = str(value)
        if "jax" in sys.modules:
            import jax

            jax.config.update(name.lower(), value)


def keep_compiled_programs() -> None:
    """Lets JAX keep compiled programs in the cache folder, so that a second start does not compile them again.

    JAX_COMPILATION_CACHE_DIR names another folder, and JAX_ENABLE_COMPILATION_CACHE=false keeps none. Programs of
    another processor are kept apart: a folder may be shared by machines, and a CPU program by equal ones only.
    """
    # Small programs are many, and reading one takes a fifth of the time of compiling it.
    _set_default("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", 0.0)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = Path(os.environ.get("K2JAX_CACHE") or "~/.cache/k2jax").expanduser() / "compiled"
        forget_oldest(folder, COMPILED_BYTES)
        if _free_bytes(folder) < LEAST_FREE_BYTES:  # JAX would leave cut files, and warn of each at every start
            room = f"{LEAST_FREE_BYTES >> 20} MiB"
            print(f"{folder} has less than {room} left: no compiled programs are kept", file=sys.stderr)
            return
        _set_default("JAX_COMPILATION_CACHE_DIR", str(folder / _processor()))
    _warn_once()


def _warn_once() -> None:
    """Lets JAX say once, in a line, that it cannot write or read compiled programs, and not again for each of them."""
    show = warnings.showwarning

    def show_once(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if "persistent compilation cache entry" in str(message):
            say_not_kept(str(message).partition("': ")[2])
        else:
            show(message, category, *where, **more)

    warnings.showwarning = show_once


def say_not_kept(reason: str) -> None:
    """Says in a line, once in a process, why compiled programs are not kept."""
    if not _reported:
        _reported.append(reason)
        line = reason.replace("\n", " ")
        print(f"compiled programs cannot be kept, so later starts compile again: {line}", file=sys.stderr)


_reported: list[str] = []


def _free_bytes(folder: Path) -> int:
    """Room on the disk of a folder that need not exist yet."""
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free


def forget_oldest(folder: Path, limit: int) -> None:
    """Deletes the files of a folder that were not used for longest, until the rest has at most ``limit`` bytes.

    JAX can do so itself, but then warns for ever where a process was killed between an entry and its time stamp.
    """
    files = []
    for path in folder.glob("*/*"):
        with contextlib.suppress(FileNotFoundError):  # another process forgets as well
            status = path.stat()
            files.append((max(status.st_atime, status.st_mtime), status.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= limit:
            return
        path.unlink(missing_ok=True)
        total -= size


def _processor() -> str:
    """A short name of this processor and its instruction set."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        features = {
            line for line in lines if line.split(":")[0].strip() in ("model name", "flags", "Features", "CPU part")
        }
    except OSError:  # not Linux
        features = {platform.processor()}
    return f"{platform.machine()}-{hashlib.sha256(repr(sorted(features)).encode()).hexdigest()[:12]}"


def check_kernels(model: ModelConfig) -> None:
    """Rejects ``config.model.kernels`` that this machine cannot run, before anything is compiled.

    Raises:
        UserError: Pallas kernels without a TPU, or for unsupported widths.
    """
    import jax

    check_widths(model)
    if model.kernels == "pallas" and jax.default_backend() != "tpu":
        raise UserError(
            f"config.model.kernels is pallas, which needs a TPU, and this is a {jax.default_backend()}; use xla, or "
            "interpret to run the kernels slowly in Python"
        )


def check_exchange(config: Config) -> None:
    """Rejects a ``config.parallel.expert_backend`` that this machine cannot run, before anything is compiled.

    Raises:
        UserError: ``ragged`` on a CPU, whose compiler has no such collective.
    """
    import jax

    backend, device = config.parallel.expert_backend, jax.default_backend()
    if config.parallel.expert == 1:
        return
    if backend == "ragged" and device == "cpu":
        raise UserError("config.parallel.expert_backend is ragged, which a CPU does not support; use auto")


def check_lengths(config: Config, phase: str = "") -> None:
    """Rejects rows that are longer than the attention's kernels take, where they compute it on the target platform.

    Args:
        config: of a run, or of one of its phases.
        phase: the name of the phase, for the message.

    Raises:
        UserError: it names the key, and what mends it.
    """
    from pallas_kernels.implementation import resolve
    from pallas_kernels.mla_attention import MAX_LENGTH

    lengths = {"data.sequence_length": config.data.sequence_length}
    if config.model.vision.layers:
        lengths["data.images.patches"] = config.data.images.patches
    where = f"in phase {phase}: " if phase else ""
    for key, length in lengths.items():
        if length > MAX_LENGTH and resolve(config.model.kernels) != "xla":
            raise UserError(
                f"{where}config.{key} {length:,} is more than the {MAX_LENGTH:,} that the attention's kernels take: "
                "lower it, or set config.model.kernels=xla"
            )


def check_widths(model: ModelConfig) -> None:
    """Rejects ``config.model.kernels`` that no machine can run.

    Raises:
        UserError: Pallas kernels for unsupported widths.
    """
    if model.kernels == "pallas" and not kernels_take(model):
        raise UserError(
            f"config.model.kernels is pallas, whose kernels {kernel_widths()}, not {model.d_model} and "
            f"{model.moe.expert_ffn}; use auto"
        )


def kernels_take(model: ModelConfig, shards: int = 1) -> bool:
    """Whether the experts' kernels take the widths of a model whose expert width is cut into ``shards`` parts."""
    from pallas_kernels.routed_experts import D_MULTIPLE, F_MULTIPLE

    if model.layers == model.dense_layers:
        return True
    return model.d_model % D_MULTIPLE == 0 and model.moe.expert_ffn % (F_MULTIPLE * shards) == 0


def kernel_widths() -> str:
    """What the experts' kernels need, in words that follow "the kernels"."""
    from pallas_kernels.routed_experts import D_MULTIPLE, F_MULTIPLE

    return f"need a d_model that is a multiple of {D_MULTIPLE} and an expert_ffn of {F_MULTIPLE}"


def keep_freed_memory() -> None:
    """Tells glibc to reuse freed memory instead of returning it to the system.

    XLA:CPU allocates a program's temporaries anew at every call, from threads of its own. By default glibc maps and
    unmaps such blocks each time, and page faults cost a tenth of a small training step. One arena is needed because
    the others map large blocks whatever the settings say. Does nothing where there is no glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return
    m_trim_threshold, m_top_pad, m_mmap_max, m_arena_max = -1, -2, -4, -8  # from malloc.h
    mallopt(m_arena_max, 1)
    mallopt(m_mmap_max, 0)
    mallopt(m_trim_threshold, 2**31 - 1)
    mallopt(m_top_pad, 1 << 26)


def device_name() -> str:
    """The devices in words, e.g. ``8 x TPU v5p`` or ``CPU, 2 cores``."""
    import jax

    if jax.default_backend() == "cpu":
        return f"CPU, {os.cpu_count()} cores"
    return f"{jax.device_count()} x {jax.devices()[0].device_kind}"
