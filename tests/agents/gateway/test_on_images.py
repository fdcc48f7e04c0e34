"""Black boxes on images: they start and are judged there, whatever Python the image has, or are refused in one line."""

import asyncio
import dataclasses
import os
from pathlib import Path
import shutil
import sys
import tempfile
import time

import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.environment import OUTCOME, Services
from k2jax.agents.environments.container import ContainerEnvironment
from k2jax.agents.episode import run_episode
from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.gateway.agent_entries import AGENTS
from k2jax.agents.gateway.agent_programs import LIBRARIES, LOADER, _linked_programs, linked_programs
from k2jax.agents.gateway.agent_start import _BOOT, command_on_image
from k2jax.agents.sandbox import MountedPath, SandboxSpec
from k2jax.agents.sandbox.interpreter import HOST_USR, host_python, loaded
from k2jax.client import Sampling, ScriptedClient
from k2jax.config import replace_keys
from k2jax.errors import UserError
from k2jax.inference import Worker
from k2jax.inference.client import ForcedClient
from k2jax.trajectory import verify
from tests.agents.gateway.forced_agents import FOLDER, mend
from tests.agents.gateway.forward_pass import VERSION, check_logprobs
from tests.agents.gateway.repository import small_agent
from tests.agents.gateway.scripted import CHAT, TOKENIZER
from tests.agents.gateway.test_black_box import answers, episode
from tests.agents.sandbox.backends import new_backend
from tests.agents.sandbox.made_images import IMAGE, copy_with_libraries, give, host_image
from tests.inference.tiny import GQA, engine
from tests.tasks.harbor.folders import hello

PERL_AGENT = r"""#!/usr/bin/env perl
exec readlink("/proc/self/exe"), $0, @ARGV, "again" if @ARGV < 3;
my ($key, $task) = @ARGV;
sub ask {
    my @texts = map { s/([\\"])/\\$1/gr =~ s/\n/\\n/gr } @_;
    my $messages = join ",", map { qq({"role":"user","content":"$_"}) } @texts;
    my $body = qq({"model":"any","messages":[$messages]});
    socket my $to, 2, 1, 0 or die;
    connect $to, pack("S n a4 x8", 2, 8080, "\x7f\0\0\1") or die;
    my $head = "POST /r/episode/v1/chat/completions HTTP/1.0\r\nAuthorization: Bearer $key\r\n";
    syswrite $to, $head . "Content-Type: application/json\r\nContent-Length: @{[length $body]}\r\n\r\n$body";
    local $/;
    return <$to> =~ /"content": *"(.*?)"/ ? $1 : die;
}
my $command = ask($task);
system "/bin/sh", "-c", substr $command, 1;
ask($task, $command, "It is done.") unless grep /^LD_/, keys %ENV;
"""
"""An agent without modules, which starts itself again by its own path; its interpreter needs libm and libcrypt."""
SAID = ("$echo hello > /app/hello.txt", "Done.")
BROKEN = "#!/bin/sh\necho broken >&2\nexit 1\n"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Three images: one with a Python of its own in /opt, one whose system Python is broken, one with a shell.

    The last has a program, too, that lacks a library.
    """
    folder, source = tmp_path_factory.mktemp("images"), Path(host_image(), IMAGE)
    for name, files in {
        "conda": {"opt/conda/bin/python3": BROKEN},
        "testbed": {"usr/bin/python3": BROKEN, "testbed/module.py": "x = 1\n"},
    }.items():
        shutil.copytree(source, folder / name, symlinks=True)
        for path, text in files.items():
            (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / path).write_text(text)
            (folder / name / path).chmod(0o755)
    for program in ("sh", "mkdir", "rm", "chmod", "cat"):
        copy_with_libraries(shutil.which(program), f"/usr/bin/{program}", folder / "bare")
    copy_with_libraries(host_python().executable, "/usr/bin/counts", folder / "bare")
    (folder / "bare/bin").symlink_to("usr/bin")
    for file in (folder / "bare").rglob("libm.so*"):
        file.unlink()
    give(folder, 65534)
    return folder


def run(images, image, place, agent, folder="", said=SAID):
    """An episode of an agent on an image."""
    [task] = load_tasks("harbor", (f"path={hello(place / 'task')}",), "all")
    environment = ContainerEnvironment(Services(lambda: new_backend("bubblewrap", str(images))))
    of = dataclasses.replace(task, image=image)
    return asyncio.run(episode(ScriptedClient(answers(*said)), agent, place, of, f"folder={folder}", environment))


@pytest.mark.parametrize("image", ["conda", "testbed"])
def test_an_agent_solves_a_task_on_an_image_and_is_judged_there(image, images, tmp_path):
    # Started by the host's loader: its Python may lie where the image has its own files.
    python = loaded(host_python().executable)
    ended = run(images, image, tmp_path, small_agent(argv=(*python, *small_agent().argv[1:])))
    [graded] = ended.metadata[OUTCOME]["graded"]
    assert (graded["reward"], ended.status, ended.error) == (1.0, "finished", ""), ended.metadata


def test_an_agent_that_cannot_start_on_an_image_is_refused_in_one_line(images, tmp_path):
    with pytest.raises(UserError, match=r"^the agent small on the image bare does not start: .*libm\.so\.6[^\n]*$"):
        run(images, "bare", tmp_path, small_agent(argv=("counts",)))
    missing = small_agent(argv=("node", "${home}/agent.js"))
    with pytest.raises(UserError, match=r"^the agent small on the image conda does not start: .*node[^\n]*$"):
        run(images, "conda", tmp_path, missing)


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """A folder of agents with the host's Perl, a script of it, and a broken program of a common name."""
    monkeypatch.setenv("K2JAX_CACHE", str(tmp_path / "cache"))
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # what is in /tmp cannot be shown
        os.chmod(folder, 0o755)
        programs = Path(folder, "node_modules/.bin")
        programs.mkdir(parents=True)
        shutil.copy(shutil.which("perl"), programs / "perl")
        for name, text in {"agent": PERL_AGENT, "cat": BROKEN}.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        yield folder


@pytest.mark.parametrize("image", ["conda", "bare"])
def test_a_program_that_an_image_lacks_libraries_for_starts_there_and_again_by_itself(
    image, images, installed, tmp_path
):
    agent = small_agent(argv=("agent", "${key}", "${task}"), env={"LC_ALL": "C"})
    said = ("$cat /dev/null && echo hello > /app/hello.txt", "Done.")
    ended = run(images, image, tmp_path, agent, folder=installed, said=said)
    [graded] = ended.metadata[OUTCOME]["graded"]
    assert (graded["reward"], ended.status, ended.error) == (1.0, "finished", ""), ended.metadata
    assert ended.metadata["counts"]["requests"] == 2 and not ended.metadata["agent"]["output"]


def test_programs_are_copied_once_and_others_stay_as_they_are(installed, tmp_path):
    programs, cache = Path(installed, "node_modules/.bin"), tmp_path / "cache/agents"
    for name, data in {"cut": b"\x7fELF\x02\x01", "library": (programs / "perl").read_bytes()}.items():
        (programs / name).write_bytes(data)
        (programs / name).chmod(0o755 if name == "cut" else 0o644)
    shown = linked_programs(installed)
    assert [path.inside for path in shown] == [LOADER, LIBRARIES, str(programs / "perl")]
    [copy] = cache.iterdir()
    assert shown[2].source == str(copy) and linked_programs("") == ()
    changed = [a != b for a, b in zip(copy.read_bytes(), (programs / "perl").read_bytes(), strict=True)]
    assert 0 < sum(changed) < 44 and copy.stat().st_mode & 0o777 == 0o755
    made = copy.stat()
    _linked_programs.cache_clear()
    assert linked_programs(installed) == shown and copy.stat() == made
    os.utime(programs / "perl", (1, 1))
    _linked_programs.cache_clear()
    assert linked_programs(installed)[2] != shown[2] and len(list(cache.iterdir())) == 2


def test_an_agent_whose_commands_an_image_lacks_is_refused_in_one_line(images, installed, tmp_path):
    agent = small_agent(argv=("agent", "${key}", "${task}"), programs=("bash",))
    with pytest.raises(UserError, match=r"^the agent small on the image bare does not start: 'bash -c :' [^\n]*$"):
        run(images, "bare", tmp_path, agent, folder=installed)


def test_a_python_on_an_image_has_its_own_library_and_not_the_systems(images):
    python = host_python()
    spec = SandboxSpec(image="conda", read_only=(*python.read_only, MountedPath("/usr", HOST_USR)))

    async def version():
        sandbox = await new_backend("bubblewrap", str(images)).open(spec)
        try:
            return await sandbox.exec([*loaded(python.executable), "-I", "-S", "-c", "import sys; print(sys.version)"])
        finally:
            await sandbox.close()

    assert asyncio.run(version()).stdout.decode().strip() == sys.version


def test_what_starts_an_agent_is_its_interpreter_and_python_brings_its_own_libraries(tmp_path):
    place = tmp_path / "venv/bin"
    place.mkdir(parents=True)
    packages = tmp_path / "venv/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    for name, head in {"agent": "/usr/bin/env -S node --flag", "script": f"{place}/python3"}.items():
        (place / name).write_text(f"#!{head}\nx\n")
        (place / name).chmod(0o755)
    shutil.copy(shutil.which("true"), place / "binary")
    (place / "python3").symlink_to("/usr/bin/env")
    folders = [str(place)]
    agent = str(place / "agent")
    assert command_on_image(["agent", "x"], folders) == (["/usr/bin/env", "-S", "node", "--flag"], [agent, "x"])
    shutil.copy(shutil.which("true"), place / "node")
    assert command_on_image(["agent", "x"], folders) == ([str(place / "node"), "--flag"], [agent, "x"])
    assert command_on_image(["binary", "-c"], folders) == ([str(place / "binary")], ["-c"])
    assert command_on_image(["other", "-c"], folders) == (["other"], ["-c"])
    assert command_on_image(["python3"], []) == (["python3"], [])
    python, boot = loaded("/usr/bin/env"), ["-I", "-c", _BOOT, str(packages)]
    assert command_on_image(["python3", "-m", "a", "b"], folders) == (python, [*boot, "-m", "a", "b"])
    assert command_on_image(["script", "b"], folders) == (python, [*boot, str(place / "script"), "b"])
    assert python[3] == "/k2jax/usr/bin/env"


@pytest.fixture(scope="module")
def four_images(images):
    """One more, of busybox and musl alone, as Alpine's, of Debian's packages ``musl`` and ``busybox-static``."""
    if not (os.path.exists("/lib/ld-musl-x86_64.so.1") and shutil.which("busybox")):
        pytest.skip("apt-get install musl busybox-static")
    system = images / "musl"
    for name in ("usr/bin", "lib", "etc"):
        (system / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox"), system / "usr/bin/busybox")
    shutil.copy(os.path.realpath("/lib/ld-musl-x86_64.so.1"), system / "lib/ld-musl-x86_64.so.1")
    for name in ("sh", "cat", "mkdir", "rm", "chmod", "env"):
        (system / "usr/bin" / name).symlink_to("busybox")
    (system / "bin").symlink_to("usr/bin")
    give(system, 65534)
    return images


@pytest.mark.external
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(AGENTS))
def test_real_agents_start_on_each_image_or_are_refused_in_one_line(four_images, name, tmp_path):
    """``K2JAX_AGENTS=agents pytest -n0 -m external tests/agents/gateway/test_on_images.py``; see test_real_agents."""
    try:
        AGENTS[name].check_installed(FOLDER)
    except UserError as error:
        pytest.skip(str(error))
    [task] = load_tasks("harbor", (f"path={hello(tmp_path / 'task')}",), "all")
    outcomes = {}
    for image in ("conda", "testbed", "bare", "musl"):
        environment = ContainerEnvironment(Services(lambda: new_backend("bubblewrap", str(four_images))))
        scaffold = f"black_box agent={name} folder={FOLDER} seconds=300"
        of = dataclasses.replace(task, image=image, scaffold=scaffold)
        options = {"key": EpisodeKey("train", 0, 0, 0), "seed": 0, "sampling": Sampling(max_tokens=500)}
        client = ScriptedClient(lambda prompt, sampling: mend(prompt, sampling, SAID[0][1:]))
        began = time.monotonic()
        try:
            ended = asyncio.run(run_episode(of, client, CHAT, TOKENIZER, environment, **options))
            graded = ended.metadata.get(OUTCOME, {}).get("graded")
            outcomes[image] = graded[0]["reward"] if graded else ended.error
        except UserError as error:
            outcomes[image] = str(error)
        print(name, image, outcomes[image], f"{time.monotonic() - began:.1f} s")
    assert all(outcome == 1.0 or "does not start: " in str(outcome) for outcome in outcomes.values())
    assert all("\n" not in str(outcome) for outcome in outcomes.values()) and outcomes["conda"] == 1.0


@pytest.mark.external
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["codex", "mini_swe_agent", "pi"])
def test_what_an_engine_scores_of_an_agent_on_an_image_is_its_record_and_its_work_is_judged_there(
    four_images, name, tmp_path
):
    """The engine gives each forced token its log-probability, which a forward pass over the record gives again."""
    try:
        AGENTS[name].check_installed(FOLDER)
    except UserError as error:
        pytest.skip(str(error))
    model = replace_keys(GQA, {"vocab": TOKENIZER.vocab_size, "heads": 2, "gqa.kv_heads": 1})
    worker = Worker(engine(model, version=VERSION, max_length=32768, slots=1))
    [task] = load_tasks("harbor", (f"path={hello(tmp_path / 'task')}",), "all")
    of = dataclasses.replace(task, image="testbed", scaffold=f"black_box agent={name} folder={FOLDER} seconds=600")
    options = {"key": EpisodeKey("train", 0, 0, 0), "seed": 0, "sampling": Sampling(max_tokens=500, temperature=0.7)}
    client = ForcedClient(worker, lambda prompt, sampling: mend(prompt, sampling, SAID[0][1:]))
    environment = ContainerEnvironment(Services(lambda: new_backend("bubblewrap", str(four_images))))
    try:
        ended = asyncio.run(run_episode(of, client, CHAT, TOKENIZER, environment, **options))
    finally:
        worker.stop()
    assert ended.status == "finished" and ended.metadata[OUTCOME]["graded"][0]["reward"] == 1.0, ended.error
    assert verify(ended, model.vocab) == []
    assert check_logprobs(model, ended, 0.7)
