"""Programs that are kept for the next start."""

from concurrent.futures import ThreadPoolExecutor
import contextlib
import dataclasses
from pathlib import Path
import shutil
import threading

from hypothesis import given
from hypothesis import strategies as st
import jax
import numpy as np
import pytest

from k2jax.client import Sampling
from k2jax.config import GQAConfig
from k2jax.inference import executables, programs, shapes
from k2jax.inference.forward import cache_shape
from tests.inference.tiny import MLA, NORMED, engine

PROMPT = list(range(1, 24))
SAMPLING = Sampling(max_tokens=6, temperature=0.7, seed=5)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder of programs, and what the engine that has compiled them generated."""
    folder = tmp_path_factory.mktemp("programs")
    with pytest.MonkeyPatch.context() as patch:
        use(None, patch)
        generated()  # JAX's cache has them now, and what JAX reads there cannot be written again
        jax.clear_caches()
        use(folder, patch)
        return folder, generated()


@pytest.fixture
def folder(kept, tmp_path, monkeypatch):
    """A copy of that folder for a process that has no program yet."""
    shutil.copytree(kept[0], tmp_path, dirs_exist_ok=True)
    use(tmp_path, monkeypatch)
    return tmp_path


def use(folder, patch):
    patch.setattr(programs, "folder_of_programs", lambda: folder)
    patch.setattr(executables, "_compiled", {})


def generated():
    [request] = engine(NORMED).generate([PROMPT], SAMPLING)
    return list(request.tokens), request.logprobs.tobytes()


class Refusing:
    """Stands for what surrounds a compilation."""

    def __enter__(self):
        raise AssertionError("a program is compiled")

    def __exit__(self, *error):
        pass


def forbid_compilation(monkeypatch):
    monkeypatch.setattr(executables, "_no_cache_of_jax", Refusing())


def test_a_later_start_compiles_nothing_and_generates_the_same_bits(kept, folder, monkeypatch):
    forbid_compilation(monkeypatch)
    assert generated() == kept[1]


def test_without_a_folder_the_same_is_generated(kept, monkeypatch):
    monkeypatch.setattr(programs, "folder_of_programs", lambda: None)
    tokens, logprobs = generated()
    assert tokens == kept[1][0]
    np.testing.assert_allclose(*(np.frombuffer(each, np.float32) for each in (logprobs, kept[1][1])), rtol=1e-5)


def test_short_programs_prepare_no_matrix_product_for_a_library(tmp_path, monkeypatch):
    use(tmp_path, monkeypatch)

    @jax.jit
    def twice(weights, tokens):
        return jax.numpy.tanh(tokens @ weights) @ weights

    device = jax.devices("cpu")[0]
    made = executables.Executables(tmp_path, "engine", device)
    held, given = (np.ones((64, 64), np.float32),), (np.ones((16, 64), np.float32),)
    result = made.run(twice, held, given, short=True)
    [program] = executables._compiled.values()
    assert "ynn" in twice.lower(*held, *given).compile().as_text()
    assert "ynn" not in program.as_text()
    np.testing.assert_allclose(result, twice(*held, *given), rtol=1e-5)


def test_what_the_last_start_kept_is_loaded_before_it_is_asked_for(folder):
    written = sorted(folder.glob("*.executable"), key=lambda path: path.stat().st_mtime)
    loading = engine(NORMED).programs._executables._loading
    assert list(loading) == written[: executables.PRELOADED] and len(written) > 2
    assert all(callable(future.result()) for future in loading.values())


def test_an_engine_knows_whether_programs_of_its_own_are_kept(folder):
    assert engine(NORMED).has_kept_programs and not engine(MLA).has_kept_programs
    for path in folder.glob("*-decode-*"):
        path.unlink()
    assert not engine(NORMED).has_kept_programs


def test_a_program_that_waits_behind_others_is_loaded_where_it_is_needed(folder, monkeypatch):
    load, held = executables._load, threading.Event()

    def slow(path, device):
        if threading.current_thread().name.startswith("executables"):
            assert held.wait(60)
        return load(path, device)

    monkeypatch.setattr(executables, "_load", slow)
    waiting = engine(NORMED).programs._executables
    behind = list(waiting._loading)[1:]
    assert behind
    with ThreadPoolExecutor(1) as caller:
        try:
            for path in behind:
                assert callable(caller.submit(waiting._program, path, None, (), {}, None).result(20))
        finally:
            held.set()


def test_a_damaged_file_is_named_and_its_program_compiled_again(kept, folder, monkeypatch, capsys):
    names = [path.name for path in sorted(folder.glob("*.executable"))]
    for number, name in enumerate(names):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes((content[: len(content) // 2], b"nonsense", b"")[number % 3])
    assert generated() == kept[1]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == len(names) and all(any(name in line for line in said) for name in names)
    use(folder, monkeypatch)
    forbid_compilation(monkeypatch)
    assert generated() == kept[1]


def test_every_program_setting_and_shape_has_a_name_of_its_own(folder):
    asked = executables.Executables(folder, "an engine", jax.devices()[0])
    other = executables.Executables(folder, "another engine", jax.devices()[0])
    arguments = [(np.zeros(3, np.float32),), (np.zeros(3, np.float16),), (np.zeros(4, np.float32),)]
    paths = [
        which._path(function, given, {"config": config})
        for which in (asked, other)
        for function in (programs.sample, programs.decode)
        for given in arguments
        for config in (MLA, NORMED)
    ]
    with jax.default_matmul_precision("highest"):
        paths.append(asked._path(programs.sample, arguments[0], {"config": MLA}))
    assert len(set(paths)) == len(paths) == 25
    assert paths[0] == asked._path(programs.sample, arguments[0], {"config": MLA})


def test_sources_and_the_options_of_the_compiler_have_names_of_their_own(monkeypatch):
    digests = set()
    for flags in ("--xla_a=1", "--xla_a=2"):
        monkeypatch.setenv("XLA_FLAGS", flags)
        executables._surroundings.cache_clear()
        digests.add(executables._surroundings(jax.devices()[0]))
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * path.match("inference/decode.py"))
    executables._surroundings.cache_clear()
    digests.add(executables._surroundings(jax.devices()[0]))
    executables._surroundings.cache_clear()
    assert len(digests) == 3


def test_nothing_is_kept_where_jax_keeps_nothing():
    for name, value in (("jax_enable_compilation_cache", False), ("jax_compilation_cache_dir", None)):
        before = getattr(jax.config, name)
        jax.config.update(name, value)
        try:
            assert executables.folder_of_programs() is None
        finally:
            jax.config.update(name, before)
    assert executables.folder_of_programs() is not None


def test_engines_that_compile_at_a_time_leave_jaxs_cache_as_it_was():
    """The first to begin ends first; meanwhile another engine that opens still keeps its programs."""
    surrounding = executables._no_cache_of_jax
    assert jax.config.jax_enable_compilation_cache
    with contextlib.ExitStack() as first:
        first.enter_context(surrounding)
        with surrounding:
            first.close()
            assert not jax.config.jax_enable_compilation_cache
            assert executables.folder_of_programs() is not None
    assert jax.config.jax_enable_compilation_cache


@given(
    slots=st.integers(1, 64),
    page_size=st.sampled_from([1, 8, 16]),
    max_length=st.integers(1, 200_000),
    model=st.sampled_from([MLA, dataclasses.replace(NORMED, layers=30, gqa=GQAConfig(kv_heads=3, head_dim=64))]),
)
def test_the_pages_that_nobody_chose_are_of_a_gibibyte_on_a_cpu(slots, page_size, max_length, model):
    """An independent count: each page is added as long as it fits, and one sequence fits always."""
    sizes = shapes.EngineSizes.of(
        model, np.float32, None, slots=slots, pages=None, page_size=page_size, max_length=max_length
    )
    page = np.zeros(cache_shape(model, 1, page_size), np.float32).nbytes
    longest = -(-max_length // page_size)
    wanted = slots * longest
    assert longest <= sizes.pages <= wanted
    if sizes.pages < wanted:
        assert (sizes.pages + 1) * page > 2**30 or sizes.pages == longest
    if sizes.pages > longest:
        assert sizes.pages * page <= 2**30
    chosen = sizes._replace(pages=7)
    given_pages = {"slots": slots, "pages": 7, "page_size": page_size, "max_length": max_length}
    assert shapes.EngineSizes.of(model, np.float32, None, **given_pages) == chosen
