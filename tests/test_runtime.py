"""What a process sets before JAX starts."""

import os

from k2jax import runtime


def test_what_was_not_used_for_longest_is_forgotten_first(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    for age, name in enumerate(("b/newest", "a/newer", "b/older", "a/oldest")):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    runtime.forget_oldest(tmp_path, 250)
    assert sorted(path.name for path in tmp_path.glob("*/*")) == ["newer", "newest"]
    runtime.forget_oldest(tmp_path / "nowhere", 0)


def test_a_folder_that_the_user_names_is_kept(tmp_path, monkeypatch):
    for name in ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "JAX_COMPILATION_CACHE_DIR"):
        monkeypatch.setenv(name, "")  # so that what is set below is undone
        monkeypatch.delenv(name)
    monkeypatch.setenv("K2JAX_CACHE", str(tmp_path))
    runtime.keep_compiled_programs()
    ours = os.environ["JAX_COMPILATION_CACHE_DIR"]
    assert ours.startswith(f"{tmp_path}/compiled/") and ours == f"{tmp_path}/compiled/{runtime._processor()}"
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "gs://bucket/compiled")
    runtime.keep_compiled_programs()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "gs://bucket/compiled"
