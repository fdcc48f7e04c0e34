"""What a process sets before JAX starts."""

import gc
import os
from pathlib import Path
import subprocess
import sys

from k2jax import runtime
from k2jax.convert.importing import import_folder
from tests.serve.folder import write

ROOT = Path(__file__).parents[1]


def test_what_was_not_used_for_longest_is_forgotten_first(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    for age, name in enumerate(("b/newest", "a/newer", "b/older", "a/oldest")):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    runtime.forget_oldest(tmp_path, 250)
    assert sorted(path.name for path in tmp_path.glob("*/*")) == ["newer", "newest"]
    runtime.forget_oldest(tmp_path / "nowhere", 0)


def test_no_garbage_is_collected_between_the_beginning_and_the_end_of_a_start():
    assert gc.isenabled()
    runtime.pause_collection()
    assert not gc.isenabled()
    frozen = gc.get_freeze_count()
    runtime.resume_collection()
    assert gc.isenabled() and gc.get_freeze_count() > frozen
    frozen = gc.get_freeze_count()
    runtime.resume_collection()  # nothing was paused: what lives now may be garbage later
    assert gc.get_freeze_count() <= frozen
    gc.unfreeze()


SETTINGS = """
import sys
if "after" in sys.argv:
    import jax
from k2jax import runtime
runtime.prepare()
import jax
config = jax.config
print(config.jax_compilation_cache_dir, config.jax_persistent_cache_min_compile_time_secs, config.jax_platforms)
"""


def new_process(tmp_path, *words, program=SETTINGS, **environment):
    """A new process, which prints its cache folder, the shortest compilation that is kept, and its platforms."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "TPU_", "TF_CPP_"))}
    env = ours | {"PYTHONPATH": str(ROOT), "K2JAX_CACHE": str(tmp_path)} | environment
    return subprocess.run([sys.executable, "-c", program, *words], env=env, capture_output=True, text=True, check=True)


def check_settings(tmp_path, printed):
    folder, seconds, platforms = printed.split()
    assert folder == f"{tmp_path}/compiled/{runtime._processor()}" and float(seconds) == 0
    assert platforms in ("cpu", "cuda,cpu", "tpu,cpu")


def test_what_the_user_sets_is_kept(tmp_path):
    own = {"JAX_COMPILATION_CACHE_DIR": "gs://bucket/compiled", "JAX_PLATFORMS": "cpu"}
    own["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "7"
    assert new_process(tmp_path, "after", **own).stdout.split() == ["gs://bucket/compiled", "7.0", "cpu"]


def test_nothing_is_kept_on_a_disk_that_is_nearly_full(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("K2JAX_CACHE", str(tmp_path / "not" / "there"))
    monkeypatch.setattr(runtime, "LEAST_FREE_BYTES", 1 << 60)
    runtime.keep_compiled_programs()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
    assert "no compiled programs are kept" in capsys.readouterr().err


LOADS = (
    SETTINGS.replace("from k2jax import runtime\nruntime.prepare()", "from k2jax.inference import Engine")
    + """
import k2jax
model, params = k2jax.from_pretrained(sys.argv[1])
print(k2jax.load_tokenizer(sys.argv[1]).vocab_size, params["embed"].shape[0])
"""
)


def test_what_is_imported_from_python_prepares_as_commands_do_and_loads_without_a_word_of_libraries(tmp_path):
    """As README's example does. Orbax warns of shardings, and libtpu, where it is installed, of a TPU that is none."""
    import_folder(write(tmp_path / "hf"), tmp_path / "run")
    done = new_process(tmp_path, str(tmp_path / "run"), program=LOADS)
    settings, sizes = done.stdout.splitlines()
    check_settings(tmp_path, settings)
    assert (sizes, done.stderr) == ("258 258", "")


WITHOUT_ROOM = f"""
{SETTINGS}
import resource
import jax.numpy as jnp
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
print([float(jax.jit(lambda x, i=i: x + i)(jnp.float32(1))) for i in range(3)])
"""


def test_settings_hold_after_jax_is_imported_and_programs_that_cannot_be_written_are_one_line(tmp_path):
    """The disk may fill while a server runs, after the room was looked at."""
    done = new_process(tmp_path, "after", program=WITHOUT_ROOM)
    settings, numbers = done.stdout.splitlines()
    check_settings(tmp_path, settings)
    assert numbers == "[1.0, 2.0, 3.0]"
    assert done.stderr.startswith("compiled programs cannot be kept") and done.stderr.count("\n") == 1
