"""Several processes as one run: they find each other, train as one does, and end together."""

import re
import signal
import threading

import numpy as np
import pytest

from k2jax import processes
from k2jax.checkpoint import Checkpoints
from k2jax.data import prepare_data
from k2jax.errors import UserError
from k2jax.processes import membership, termination
from k2jax.processes.group import NEWS_SECONDS, Group
from k2jax.processes.rendezvous import ProcessLostError, rendezvous
from k2jax.report.metrics import read_metrics
from k2jax.train import train
from k2jax.train.corpus import shared_data
from tests.train.member import values
from tests.train.tiny import CONFIG_FILE, tiny, write_corpus
from tests.train.together import end, free_port, python, trainers, wait_for_step

CHANGED = {"optimizer.name": "adamw", "train.batch_size": 8}
FLAGS = [f"--config.{key}={value}" for key, value in CHANGED.items()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    write_corpus(folder)
    (folder / "config.py").write_text(CONFIG_FILE.format(folder=str(folder)))
    return folder


@pytest.fixture(scope="module")
def alone(folder):
    """The records of one process that is not interrupted."""
    assert train(tiny(folder, **CHANGED), folder / "alone") == 0
    return read_metrics(folder / "alone")


def curve(records):
    return [[record["loss"], record.get("val_loss", 0)] for record in records]


def members(what, count, *more):
    port = free_port()
    return [python(["-m", "tests.train.member", what, *more], index, count, port) for index in range(count)]


def errors(told):
    return [[line for line in stderr.splitlines() if line.startswith("error: ")] for _, _, stderr in told]


@pytest.mark.slow
@pytest.mark.parametrize(("count", "victim", "rest"), [(2, 1, 1), (4, 2, 2)], ids=["two", "four"])
def test_one_of_several_is_killed_and_the_rest_go_on(folder, alone, count, victim, rest):
    workdir = folder / f"killed of {count}"
    started = trainers(folder, workdir, count, *FLAGS)
    wait_for_step(workdir, 9, started)  # the save of step 8 has waited until that of step 4 was committed
    started[victim].send_signal(signal.SIGKILL)
    told = end(started, 60)
    assert [code for code, _, _ in told] == [-signal.SIGKILL if index == victim else 1 for index in range(count)]
    for index in set(range(count)) - {victim}:
        (line,) = errors(told)[index]
        prefix = f"process {index}: " if index else ""
        found = re.fullmatch(
            rf"error: {prefix}process {victim} \(\S+\) does not respond since step (\d+): the run stops; "
            r"restart it; it resumes from step (\d+)",
            line,
        )
        assert found and int(found[2]) in (4, 8) and int(found[1]) >= 6, line
    saved = max(int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdecimal())

    told = end(trainers(folder, workdir, rest, *FLAGS))
    assert [code for code, _, _ in told] == [0] * rest, told
    assert f"resumed from step {saved}" in told[0][1]
    assert not any(re.search(r"step|resumed", stdout) for _, stdout, _ in told[1:])
    np.testing.assert_allclose(curve(read_metrics(workdir)), curve(alone), rtol=1e-5)
    assert (workdir / "report.md").exists() and (workdir / "tokenizer" / "tokenizer.json").exists()


@pytest.mark.slow
def test_sigterm_to_one_saves_in_all(folder, alone):
    workdir = folder / "terminated"
    two = trainers(folder, workdir, 2, *FLAGS, "--config.checkpoint.every=1000", "--config.train.steps=1000")
    wait_for_step(workdir, 2, two)
    two[1].send_signal(signal.SIGTERM)
    told = end(two)
    assert [code for code, _, _ in told] == [143, 143], told
    records = read_metrics(workdir)
    assert [path.name for path in (workdir / "checkpoints").iterdir()] == [str(records[-1]["step"])]
    np.testing.assert_allclose([r["loss"] for r in records[:2]], [r["loss"] for r in alone[:2]], rtol=1e-5)


def test_other_configs_are_refused_before_anything_is_computed(folder):
    port = free_port()
    arguments = ["-m", "k2jax.train", f"--config={folder}/config.py", f"--workdir={folder}/other", *FLAGS]
    told = end([python([*arguments, f"--config.train.seed={i}"], i, 2, port) for i in range(2)])
    assert [code for code, _, _ in told] == [2, 2]
    assert errors(told)[1] == ["error: process 1: config.train.seed differ from process 0; give every process the same "
                               "command"]  # fmt: skip
    assert re.match(r"error: process 1 \(\S+\) stopped: config.train.seed differ", errors(told)[0][0])


def test_a_barrier_names_who_did_not_come():
    told = end(members("barrier", 2), 60)
    assert [code for code, _, _ in told] == [1, 1]
    for (line,) in errors(told):
        assert re.search(r"process 1 \(\S+\) did not reach 'data' within 2 s", line), line


@pytest.mark.parametrize(("what", "code", "line"), [("mistake", 2, "no such file"), ("bug", 1, "KeyboardInterrupt:")])
def test_what_ends_one_ends_all_with_its_line(what, code, line):
    told = end(members(what, 2), 60)
    assert [each for each, _, _ in told] == [code, code]
    assert errors(told)[1] == [f"error: process 1: {line}"]
    assert re.fullmatch(rf"error: process 1 \(\S+\) stopped: {line}", errors(told)[0][0])


def test_a_text_that_all_have_read_is_kept_no_longer():
    told = end(members("broadcast", 3), 60)
    assert [code for code, _, _ in told] == [7] * 3, told
    assert [stdout for _, stdout, _ in told] == ["['0 of 0', '1 of 0', '2 of 0'] []\n"] * 3


@pytest.mark.parametrize("what", ["wait", pytest.param("unwatched", marks=pytest.mark.slow)])
def test_when_the_coordinator_is_killed_the_others_say_so(what):
    three = members(what, 3)
    for process in three:
        process.stdout.readline()
    three[0].send_signal(signal.SIGKILL)
    told = end(three, 60)
    assert [code for code, _, _ in told] == [-signal.SIGKILL, 1, 1]
    for index in (1, 2):
        (line,) = errors(told)[index]
        assert re.match(rf"error: process {index}: process 0( \(\S+\))? does not respond", line), line


class DeadService:
    """A client of jax's coordination service whose process died while this one waited at a barrier."""

    def key_value_set(self, key, value):
        pass

    def key_value_dir_get(self, folder):
        raise RuntimeError("UNAVAILABLE: Socket closed")

    def wait_at_barrier(self, name, milliseconds):
        raise RuntimeError("UNAVAILABLE: Failed to send RPC to coordination service")


@pytest.mark.parametrize("body", [lambda: 0, lambda: processes.barrier("built", None)], ids=["end", "built"])
def test_a_death_at_a_barrier_is_left_to_the_watchers(monkeypatch, capsys, body):
    group = object.__new__(Group)
    group.__dict__ |= {
        "index": 1,
        "count": 2,
        "_client": DeadService(),
        "_host": "b",
        "_hosts": {},
        "news_seconds": NEWS_SECONDS,
    }

    class EndedByWatcherError(BaseException):
        pass

    def sleep(seconds):
        assert seconds > processes.HEARTBEAT_SECONDS
        raise EndedByWatcherError

    monkeypatch.setattr(membership, "_group", group)
    monkeypatch.setattr(termination.time, "sleep", sleep)
    with pytest.raises(EndedByWatcherError):
        processes.run_and_exit(body)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("first", [True, False])
def test_the_data_are_looked_for_when_process_0_has_built_them(monkeypatch, folder, first):
    """However long that takes: the folder appears while the others wait, which is where they look for it."""
    config, built = tiny(folder, **{"data.cache_dir": str(folder / f"cache of {first}")}), []

    def barrier(name, seconds):
        assert (name, seconds) == ("built", None)
        built.append(list((folder / f"cache of {first}").rglob("manifest.json")))
        if not first:
            prepare_data(config.data, batch_size=4, seed=0, steps=1)

    monkeypatch.setattr(processes, "is_first", lambda: first)
    monkeypatch.setattr(processes, "barrier", barrier)
    assert set(shared_data(config, range(2)).manifests) == {"one", "two"}
    assert [len(manifests) for manifests in built] == [2 if first else 0]


def test_each_byte_of_a_checkpoint_is_read_once_over_processes(tmp_path):
    checkpoints, tree = Checkpoints(tmp_path), values()
    checkpoints.save(1, tree, [tree], {})
    checkpoints.close()
    told = end(members("load", 2, str(tmp_path)), 60)
    assert [code for code, _, _ in told] == [7] * 2, told
    read = [int(re.search(r"read (\d+)", stdout)[1]) for _, stdout, _ in told]
    size = 2 * sum(x.nbytes for x in tree.values())
    assert sum(read) < 1.1 * size and max(read) < 1.1 * size / 2


def meeting(*seen, seconds=1.0):
    """The error that each of some processes, given as (count, index), gets; None for none."""
    address, raised = f"localhost:{free_port()}", [None] * len(seen)

    def attend(position):
        try:
            rendezvous(address, *seen[position], seconds)
        except (UserError, ProcessLostError) as error:
            raised[position] = error

    threads = [threading.Thread(target=attend, args=(position,)) for position in range(len(seen))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_a_meeting_ends_when_all_are_there():
    assert meeting((3, 2), (3, 0), (3, 1), seconds=20) == [None] * 3


def test_a_meeting_names_who_is_missing():
    for error in meeting((4, 2), (4, 0)):
        assert isinstance(error, ProcessLostError)
        assert str(error).startswith("process 1, process 3 of 4 did not start within 1 s")


def test_a_meeting_refuses_what_does_not_fit_together():
    assert "JAX_NUM_PROCESSES 2, process 0 has 3" in str(meeting((3, 0), (2, 1))[0])
    assert "two processes have JAX_PROCESS_ID 1" in str(meeting((3, 0), (3, 1), (3, 1))[0])


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"ID": "0"}, "JAX_PROCESS_ID without JAX_COORDINATOR_ADDRESS and JAX_NUM_PROCESSES"),
        ({"ID": "x", "COUNT": "2", "ADDRESS": "a:1"}, "must be numbers"),
        ({"ID": "2", "COUNT": "2", "ADDRESS": "a:1"}, "JAX_PROCESS_ID 2 must be below JAX_NUM_PROCESSES 2"),
        ({"ID": "0", "COUNT": "2", "ADDRESS": "a"}, "must be HOST:PORT"),
    ],
)
def test_variables_that_make_no_sense_are_one_line(monkeypatch, variables, message):
    names = {"ID": "JAX_PROCESS_ID", "COUNT": "JAX_NUM_PROCESSES", "ADDRESS": "JAX_COORDINATOR_ADDRESS"}
    for name in names.values():
        monkeypatch.delenv(name, raising=False)
    for key, value in variables.items():
        monkeypatch.setenv(names[key], value)
    with pytest.raises(UserError, match=message):
        processes.start()


def test_a_process_alone_stays_alone(monkeypatch):
    for name in ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_COORDINATOR_ADDRESS", "TPU_WORKER_HOSTNAMES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JAX_PLATFORMS", "tpu,cpu")
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "localhost")
    processes.start()
    assert (processes.index(), processes.count(), processes.run_and_exit(lambda: 5)) == (0, 1, 5)
