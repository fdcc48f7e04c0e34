"""Folders of tasks in Harbor's published form, as tests write them."""

from tests.agents.sandbox.made_images import IMAGE

REWARD = "mkdir -p /logs/verifier\n"
DOCKERFILE = f"FROM {IMAGE}\nWORKDIR /app\n"


def write(folder, files):
    """Writes files by their paths."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def hello(folder, toml='schema_version = "1.4"\n[task]\nname = "tests/hello"\n', **changes):
    """A task of one step: a file must hold a word."""
    files = {
        "task.toml": toml,
        "instruction.md": "Write the word hello into /app/hello.txt.\n",
        "environment/Dockerfile": DOCKERFILE,
        "tests/test.sh": f"#!/bin/sh\n{REWARD}"
        'if [ "$(cat /app/hello.txt)" = hello ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\nexit 3\n',
        "solution/solve.sh": "#!/bin/sh\nset -e\n. /solution/word.sh\necho $WORD > /app/hello.txt\n",
        "solution/word.sh": "WORD=hello",
    }
    return write(folder, files | changes)


def named(folder):
    """Named rewards, of which a program other than ``test.sh`` decides."""
    toml = f'schema_version = "1.2"\n[task]\nname = "tests/named"\n[environment]\ndocker_image = "{IMAGE}"\n'
    toml += 'workdir = "/srv/data"\nenv = { UNIT = "kB" }\n[verifier]\nenv = { EXPECTED = "3 kB" }\ntimeout_sec = 60\n'
    judge = 'grep -q "^$EXPECTED\\$" size.txt && right=1 || right=0\n[ -f size.txt ] && there=true || there=false\n'
    return write(
        folder,
        {
            "task.toml": toml,
            "instruction.md": "Write 3 and the unit of the variable UNIT into size.txt.",
            "tests/test.sh": "#!/bin/sh\n. /tests/deep/judge.sh\n"
            'printf \'{"right": %s, "there": %s, "unknown": null}\' $right $there > /logs/verifier/reward.json\n',
            "tests/deep/judge.sh": judge,
            "solution/solve.sh": "#!/bin/sh\necho 3 $UNIT > size.txt\n",
        },
    )


def in_steps(folder):
    """Two steps; the second one's tests stand on what the task's own have."""
    toml = 'schema_version = "1.4"\nmulti_step_reward_strategy = "mean"\n[task]\nname = "tests/steps"\n'
    toml += "[[steps]]\nname = '01-first'\nmin_reward = 0.5\n[[steps]]\nname = '02-second'\n"
    toml += "[steps.verifier]\nenv = { WANTED = 'two' }\n"
    judge = "#!/bin/sh\n. /tests/helper.sh\njudge "
    return write(
        folder,
        {
            "task.toml": toml,
            "environment/Dockerfile": DOCKERFILE,
            "tests/helper.sh": "judge() { if grep -q $1 /app/notes; then echo 1; else echo 0; fi "
            "> /logs/verifier/reward.txt; }\n",
            "steps/01-first/instruction.md": "Write one into /app/notes.",
            "steps/01-first/tests/test.sh": f"{judge}one\n",
            "steps/01-first/solution/solve.sh": "#!/bin/sh\necho one >> /app/notes\n",
            "steps/02-second/instruction.md": "Add two to /app/notes.",
            "steps/02-second/tests/test.sh": f"{judge}$WANTED\n",
            "steps/02-second/solution/solve.sh": "#!/bin/sh\necho two >> /app/notes\n",
        },
    )


def as_root(folder):
    """Asks for root, and for no network."""
    toml = 'schema_version = "1.4"\n[task]\nname = "tests/root"\n[agent]\nuser = "root"\n[verifier]\nuser = "root"\n'
    toml += '[environment]\nnetwork_mode = "no-network"\nmemory_mb = 512\nstorage_mb = 256\n'
    test = f'#!/bin/sh\n{REWARD}[ "$(stat -c %u /etc/own.conf)" = 0 ] && echo 1.0 > /logs/verifier/reward.txt\n'
    solve = '#!/bin/sh\n[ "$(id -u)" = 0 ] && echo x > /etc/own.conf\n'
    return hello(folder, toml, **{"tests/test.sh": test, "solution/solve.sh": solve})


def with_old_keys(folder):
    """The keys of schema 1.0."""
    toml = 'version = "1.0"\n[metadata]\nauthor_name = "A"\ntags = ["trivial"]\n[verifier]\ntimeout_sec = 120.0\n'
    toml += '[agent]\ntimeout_sec = 120.0\n[environment]\nbuild_timeout_sec = 600.0\ncpus = 1\nmemory = "2G"\n'
    return hello(folder, toml + 'storage = "512M"\nallow_internet = false\nnew_key = 1\n')


FOLDERS = {"hello": hello, "named": named, "steps": in_steps, "root": as_root, "old": with_old_keys}
