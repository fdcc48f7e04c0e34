"""Tasks in Harbor's format: the five kinds of folders, what is refused, and agents that cheat."""

import asyncio
import contextlib
import io
import shutil

from absl import flags
import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.egress.egress_log import EGRESS
from k2jax.agents.environment import EnvironmentMaker
from k2jax.agents.environments.container import scalar_reward
from k2jax.agents.registry import oracles
from k2jax.agents.sandbox.backends import make_backend
from k2jax.agents.scaffolds.scripted import called, null_policy, play_actions, said
from k2jax.agents.scorer import Scorer
from k2jax.agents.verifier_pool.pool import VerifierPool
from k2jax.errors import UserError
from k2jax.tasks.harbor.task_folder import read_task
from k2jax.tasks.oracle_check import define, main, play_all
from tests.agents.egress.origins import HELLO, OriginHost
from tests.agents.sandbox.made_images import host_image
from tests.tasks.harbor.folders import FOLDERS, hello, in_steps

SHARED = {}
"""What all tests of this file have together: a maker of environments and a scorer."""


@pytest.fixture(scope="module", autouse=True)
def shared():
    SHARED["maker"] = EnvironmentMaker("bubblewrap", images=host_image(), repositories=None)
    with VerifierPool(workers=1, timeout=60.0, retries=0) as pool:
        SHARED["scorer"] = Scorer(pool, backend=make_backend("bubblewrap", images=host_image()))
        yield


def played(folder, policy):
    """Episodes of all tasks of a folder."""
    tasks = load_tasks("harbor", (f"path={folder}",), "all")
    return asyncio.run(play_all(tasks, policy, SHARED["maker"], SHARED["scorer"], 2))


def of_actions(*actions):
    return lambda task, messages: play_actions(actions, messages)


def shell(command):
    return called("shell", command=command)


def test_references_of_five_folders_earn_1_and_who_does_nothing_earns_0(tmp_path):
    for name, make in FOLDERS.items():
        make(tmp_path / name)
    for policy, expected in ((oracles.get("harbor"), 1.0), (null_policy, 0.0)):
        for episode in played(tmp_path, policy):
            assert episode.reward is not None and episode.reward.value == expected, (episode.task, episode)


def test_the_command_checks_a_folder(tmp_path):
    hello(tmp_path)
    printed, values = io.StringIO(), flags.FlagValues()
    define(values)
    values(["check", f"--images={host_image()}"])
    with contextlib.redirect_stdout(printed):
        assert main(values, str(tmp_path)) == 0
    assert "1 of 1 episodes of the oracle policy earn 1" in printed.getvalue()


def test_what_a_folder_says(tmp_path):
    task = read_task(FOLDERS["old"](tmp_path / "old"))
    assert (task.name, task.memory, task.disk, task.workdir) == ("old", 2048, 512, "/app")
    assert task.unknown == ("environment.new_key",) and task.steps[0].seconds == 120
    named = read_task(FOLDERS["named"](tmp_path / "named"))
    assert (named.workdir, named.env, named.steps[0].env) == ("/srv/data", {"UNIT": "kB"}, {"EXPECTED": "3 kB"})
    steps = read_task(in_steps(tmp_path / "steps"))
    assert [step.min_reward for step in steps.steps] == [0.5, None] and not steps.final
    assert sorted(steps.steps[0].tests) == ["helper.sh", "test.sh"]
    built = hello(tmp_path / "built", **{"environment/Dockerfile": "FROM system\nRUN apt-get install -y x\n"})
    assert read_task(built).image == "tests/hello"
    (tmp_path / "one").mkdir()
    [chosen] = load_tasks("harbor", (f"path={FOLDERS['root'](tmp_path / 'one/root')}", "memory=128"), "all")
    assert (chosen.limits.memory, chosen.limits.disk) == (128, 256) and "hosts" not in chosen.metadata
    toml = '[environment]\nallow_internet = true\nnetwork_mode = "%s"\nallowed_hosts = ["a.example", "b.example:81"]\n'
    for mode, hosts in (("allowlist", ["a.example", "b.example:81"]), ("no-network", None), ("public", None)):
        folder = hello(tmp_path / mode, toml % mode)
        assert any("the whole internet" in key for key in read_task(folder).unknown) == (mode == "public")
        [chosen] = load_tasks("harbor", (f"path={folder}",), "all")
        assert chosen.metadata.get("hosts") == hosts


HEAD = 'schema_version = "1.4"\n'


@pytest.mark.parametrize(
    ("toml", "reason"),
    [
        ("[environment]\ngpus = 1", "it asks for GPUs"),
        ('[environment]\nos = "windows"', "another system"),
        ('[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["*.example"]', "'\\*.example' is no host"),
        ('[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = 3', "allowed_hosts: hosts of a task is 3"),
        ('[[environment.mcp_servers]]\nname = "x"', "MCP servers"),
        ('[environment.healthcheck]\ncommand = "x"', "a health check"),
        ('[verifier]\nenvironment_mode = "separate"', "a verifier in a container of its own"),
        ('[verifier]\nenv = { KEY = "${OPENAI_API_KEY}" }', "asks for a variable of this machine"),
        ("[verifier]\ntimeout_sec = -1", "timeout_sec is -1"),
        ("[environment]\nmemory = 'much'", "memory is 'much'"),
        ("[[steps]]\nname = '../../etc'", "which is none of a folder"),
        ("[[steps]]\nname = 'missing'", "has no test.sh|does not exist"),
        ("steps = 3", "steps is no list"),
        ("agent = 3", "agent is no table"),
        ("multi_step_reward_strategy = 'best'", "mean or final are known"),
        ("[task", "it cannot be read"),
        (".".join("a" * 1000) + " = 1", "has more than 100 dots"),
        ("x = " + "9" * 5000, "it cannot be read"),
        ("[agent]\ntimeout_sec = 0x" + "f" * 5000, "it cannot be read|is no positive number"),
        ("[task]\nname = ['a']", "name is .* no text"),
        ('[environment]\nos = "' + "x" * 60_000 + '"', "another system"),
        ('[verifier.env]\n"A=B" = "x"', "which is no variable"),
        ("[[steps]]\nname = 'a'\n" * 2, "two of one name"),
        ("[[steps]]\nname = 'a'\n" * 101, "more than 100 steps"),
    ],
)
def test_what_cannot_be_run_here_is_refused_by_name(tmp_path, toml, reason):
    files = {} if "steps" not in toml else {"tests/x": ""}
    with pytest.raises(UserError, match=reason) as refused:
        read_task(hello(tmp_path, HEAD + toml, **files))
    assert len(str(refused.value)) < 1000


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"has no task\.toml"):
        load_tasks("harbor", (f"path={tmp_path}",), "all")
    (hello(tmp_path / "a") / "tests/test.sh").unlink()
    with pytest.raises(UserError, match=r"tests has no test\.sh"):
        read_task(tmp_path / "a")
    (hello(tmp_path / "b") / "instruction.md").unlink()
    (tmp_path / "b/instruction.md").symlink_to("/etc/hostname")
    with pytest.raises(UserError, match="leads out of"):
        read_task(tmp_path / "b")
    shutil.rmtree(hello(tmp_path / "e") / "tests")
    (tmp_path / "e/tests").symlink_to("/usr")
    with pytest.raises(UserError, match="leads out of"):
        read_task(tmp_path / "e")
    for number in range(1001):
        (tmp_path / "a/tests" / str(number)).mkdir(parents=True)
    with pytest.raises(UserError, match="more than 1,000 files and folders"):
        read_task(tmp_path / "a")
    (hello(tmp_path / "c") / "tests/large").write_bytes(bytes(6 << 20))
    with pytest.raises(UserError, match="has more than"):
        read_task(tmp_path / "c")
    hello(tmp_path / "d", **{"environment/docker-compose.yaml": "services: {}"})
    with pytest.raises(UserError, match="a docker-compose file"):
        read_task(tmp_path / "d")


OWN = "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt"
CHEATS = {
    "a reward of one's own": OWN,
    "a link in the place of the rewards": "mkdir -p /logs; ln -s /proc/self/fd /logs/verifier",
    "tests of one's own": "mkdir -p /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh",
    "a link in the place of the tests": "ln -s /work /tests",
    "a file in the place of the logs": "echo 1 > /logs",
    "a reward of one's own, and no shell": f"{OWN}; rm /usr/bin/sh",
    "a reward of one's own, and an idle shell": f"{OWN}; rm /usr/bin/sh; cp /usr/bin/true /usr/bin/sh",
    "no shell": "rm /bin /usr/bin/sh",
    "a full disk": "head -c 2000000000 /dev/zero > /app/x; head -c 2000000000 /dev/zero > /app/y",
    "a process that stays": "(while :; do echo 1 > /logs/verifier/reward.txt; sleep 0.1; done) &",
}


def test_who_cheats_before_the_tests_earns_0(tmp_path):
    hello(tmp_path)
    for cheat, command in CHEATS.items():
        [episode] = played(tmp_path, of_actions(shell(command)))
        assert episode.reward is not None and episode.reward.value == 0.0, (cheat, episode)


REWARDS = {
    '{"reward": ' + "9" * 400 + "}": (0.0, {}),
    '{"a": 1e308, "b": 1e308}': (0.0, {}),
    '{"reward": 0.25, "other": 1}': (0.25, {"reward": 0.25, "other": 1.0}),
    '{"a": 1, "b": 0}': (0.5, {"a": 1.0, "b": 0.0}),
    "0.5": (0.5, {"reward": 0.5}),
    '{"a": NaN}': (0.0, {}),
    '{"a": "1"}': (0.0, {}),
    "{": (0.0, {}),
    "[1]": (0.0, {}),
}


def test_named_rewards_are_parts_and_what_is_no_reward_is_0_with_a_reason(tmp_path):
    for text, (value, parts) in REWARDS.items():
        test = f"#!/bin/sh\nprintf '%s' '{text}' > /logs/verifier/reward.json\n"
        hello(tmp_path, **{"tests/test.sh": test})
        [episode] = played(tmp_path, null_policy)
        assert episode.reward.value == pytest.approx(value) and dict(episode.reward.parts) == parts, text
        assert bool(episode.reward.info["reasons"]) == (not parts)
    assert scalar_reward({}) == 0.0


def test_a_reward_of_what_the_tests_run_counts_for_nothing(tmp_path):
    """The script says 0 in one file, and the agent's program, which it runs, 1 in the other."""
    test = "#!/bin/sh\n/app/program\necho 0 > /logs/verifier/reward.txt\n"
    hello(tmp_path, **{"tests/test.sh": test})
    program = "printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.json\\n' > /app/program; chmod +x /app/program"
    [episode] = played(tmp_path, of_actions(shell(program)))
    assert episode.reward.value == 0.0 and "two rewards" in episode.reward.info["reasons"][0]
    for text in ("1_0", "٣", "1 x", "", "nan", "1e7"):
        hello(tmp_path, **{"tests/test.sh": f"#!/bin/sh\nprintf '%s' '{text}' > /logs/verifier/reward.txt\n"})
        [episode] = played(tmp_path, null_policy)
        assert episode.reward.value == 0.0 and "cannot be read" in episode.reward.info["reasons"][0], text


def test_an_agent_is_shown_no_judge_of_an_earlier_step(tmp_path):
    in_steps(tmp_path)
    actions = (
        shell("echo one > /app/notes"),
        said("Done."),
        shell("ls /tests /logs/verifier; ls /logs"),
        said("Done."),
    )
    [episode] = played(tmp_path, of_actions(*actions))
    said_by_tools = [node.message["content"] for node in episode.nodes if node.message["role"] == "tool"]
    assert "test.sh" not in said_by_tools[1] and said_by_tools[1].count("No such file") == 2


def test_solutions_are_written_whatever_is_in_them(tmp_path):
    files = {"solution/it's/a file": "END-OF-FILE\ntouch /app/ran\n$HOME `x`\n"}
    solve = '#!/bin/sh\n[ -e /app/ran ] || [ "$(head -n 1 "/solution/it\'s/a file")" = END-OF-FILE ] && '
    hello(tmp_path, **files, **{"solution/solve.sh": f"{solve}echo hello > /app/hello.txt\n"})
    [episode] = played(tmp_path, oracles.get("harbor"))
    assert episode.reward.value == 1.0


def test_steps_follow_one_another_until_one_is_below_its_least_reward(tmp_path):
    in_steps(tmp_path)
    first = (shell("echo one > /app/notes"), said("Done."))
    for actions, value, reached in (
        ((said("Done."), shell("echo one two > /app/notes")), 0.0, 1),
        ((*first, said("Done.")), 0.5, 2),
        ((*first, shell("echo two > /app/notes"), said("Done.")), 1.0, 2),
    ):
        [episode] = played(tmp_path, of_actions(*actions))
        assert (episode.reward.value, episode.reward.info["reached"]) == (value, reached), actions
    assert [node.message["role"] for node in episode.nodes].count("user") == 2


def test_tests_that_take_too_long_are_a_reason(tmp_path):
    toml = f"{HEAD}[verifier]\ntimeout_sec = 0.5\n"
    hello(tmp_path, toml, **{"tests/test.sh": "#!/bin/sh\nsleep 30\n"})
    [episode] = played(tmp_path, null_policy)
    assert episode.reward.value == 0.0 and "took too long" in episode.reward.info["reasons"][0]


FETCH = """exec 3<>/dev/tcp/127.0.0.1/3128
printf 'GET http://%s/hello HTTP/1.1\\r\\nHost: %s\\r\\n\\r\\n' $1 $1 >&3
sed -n '$p' <&3
"""


def test_a_task_on_an_image_reaches_its_hosts_where_the_user_allows_them(tmp_path):
    async def run():
        async with OriginHost(HELLO + b"\n").at("127.0.0.2") as there:
            host, files = f"127.0.0.2:{there.port}", {"solution/fetch.sh": FETCH}
            toml = f'{HEAD}[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["{host}"]\n'
            files["solution/solve.sh"] = f"#!/bin/sh\nbash /solution/fetch.sh {host} > /app/hello.txt\n"
            tasks = load_tasks("harbor", (f"path={hello(tmp_path, toml, **files)}",), "all")
            ended = []
            for hosts in ([host], ["http://127.0.0.3", "https://127.0.0.2"]):
                maker = EnvironmentMaker("bubblewrap", images=host_image(), hosts=hosts)
                ended.append(play_all(tasks, oracles.get("harbor"), maker, SHARED["scorer"], 1))
            allowed = await ended[0]
            with pytest.raises(UserError, match=f"'{host}', which is not allowed; allow it with --hosts"):
                await ended[1]
            return allowed, there.asked

    [episode], asked = asyncio.run(run())
    log = episode.metadata[EGRESS]["requests"]
    assert [(entry["path"], entry["status"]) for entry in log] == [("/hello", 200)] and len(asked) == 1
    assert episode.reward.value == 1.0, episode
