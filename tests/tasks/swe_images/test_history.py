"""What an agent finds of a repository's future on an image, and which images are refused; what its patch is."""

import asyncio
import subprocess

import pytest

from k2jax.agents.environment import OUTCOME, EnvironmentMaker
from k2jax.agents.environments import image_repository
from k2jax.agents.sandbox import SandboxSpec
from k2jax.agents.sandbox.backends import make_backend
from tests.tasks.swe_images.episodes import LIVE_IMAGE, SYMPY_IMAGE, TAP_IMAGE, episode, row, tasks_of
from tests.tasks.swe_images.images import FUTURE, folder_of_images, git, make_image
from tests.tasks.swe_images.shapes import TAP

LOOKS = (
    "git for-each-ref --format='%(refname)'; git remote; git stash list; git reflog; ls .git; ls -R .git/logs",
    "git log --all --format=%s; git describe",
    "git cat-file --batch-all-objects --batch-check='%(objectname)' | sort; git fsck --full --no-dangling",
    "git rev-list --objects HEAD v1.0 | cut -c1-40; git rev-parse v1.0",
    "grep -r 'nothing names' . || git status --short",
)


def test_an_agent_finds_nothing_that_came_after_the_base_commit(tmp_path):
    for name in (LIVE_IMAGE, SYMPY_IMAGE):
        [task] = tasks_of(tmp_path, row(name))
        _, [text] = episode(task, "; echo ---; ".join(LOOKS), scored=False)
        shown = [part.strip("\n") for part in text.split("---")]
        assert not [each for each in FUTURE[name] if each in text], text
        assert shown[0].splitlines()[:2] == ["refs/heads/main", "refs/tags/v1.0"]
        for word in ("ORIG_HEAD", "origin", "stash", "future", "v2.0", "error", "missing"):
            assert word not in text, (word, text)
        subjects = ["SWE-bench", "base", "before"] if name == SYMPY_IMAGE else ["base", "before"]
        assert sorted(shown[1].splitlines()[:-1]) == subjects and shown[1].splitlines()[-1].startswith("v1.0-")
        assert set(shown[2].split()) == set(shown[3].split()) and "nothing names" not in shown[4], shown


def test_an_image_without_a_future_is_looked_through_once(tmp_path, monkeypatch):
    fields = make_image("tests/clean:1", "shell", "/testbed", TAP)
    repository = f"{folder_of_images()}/tests/clean:1/testbed"
    for command in ("tag -d v2.0", "branch -D future", "update-ref -d refs/remotes/origin/main", "stash drop -q"):
        git(repository, *command.split())
    git(repository, "reflog", "expire", "--expire=now", "--all")
    git(repository, "repack", "-adq")
    git(repository, "prune", "--expire=now")
    subprocess.run(["chmod", "-R", "a+rwX", repository], check=True)
    known, ran = [], image_repository.run_script

    async def recorded(sandbox, script, words, *rest):
        if script is image_repository.image_scripts.PREPARE:
            known.append(words[2])
        return await ran(sandbox, script, words, *rest)

    monkeypatch.setattr(image_repository, "run_script", recorded)
    [task] = tasks_of(tmp_path, fields | {"workdir": ""})
    for _ in range(2):
        _, shown = episode(task, "ls .git/objects/pack/*.pack | wc -l; git log --format=%s", scored=False)
        assert shown == ["1\nbase\nbefore"]
    assert known == ["", "clean"]


async def _begin(task, name):
    backend = make_backend("bubblewrap", images=folder_of_images())
    async with await backend.open(SandboxSpec(image=name)) as sandbox:
        place = await image_repository.find_repository(task, sandbox)
        begun = await image_repository.begin(task, sandbox, place.folder)
        objects = await sandbox.exec(["git", "cat-file", "--batch-all-objects", "--batch-check"], cwd=place.folder)
        return begun, objects.stdout.decode()


def test_repositories_of_other_kinds_are_refused_or_have_no_future(tmp_path):
    """A store of objects elsewhere is closed; partial clones, other formats and missing programs are refused."""
    fields = make_image("tests/odd:1", "shell", "/testbed", TAP)
    root = f"{folder_of_images()}/tests/odd:1"
    git(f"{root}/testbed", "checkout", "-q", "future")
    fields |= {"image_name": "tests/odd:1", "workdir": ""}
    [task] = tasks_of(tmp_path, fields)
    odd = {
        "elsewhere": "mkdir -p srv; cp -r testbed/.git/objects srv; rm -rf testbed/.git/objects/??; "
        "echo /srv/objects > testbed/.git/objects/info/alternates",
        "is a partial clone": "printf '[extensions]\\n\\tpartialClone = origin\\n' >> testbed/.git/config",
        "in a reftable": "mkdir testbed/.git/reftable",
        "has no folder .git": "mv testbed/.git testbed/git",
        "it has no git": "rm usr/bin/git",
    }
    for reason, command in odd.items():
        image_repository._places.clear()  # images of real runs stay as they are
        subprocess.run(["sh", "-ec", command], cwd=root, check=True)
        subprocess.run(["chmod", "-R", "a+rwX", f"{root}/testbed"], check=True)
        if reason != "elsewhere":
            with pytest.raises(image_repository.EnvironmentFailedError, match=reason) as refused:
                asyncio.run(_begin(task, "tests/odd:1"))
            assert "\n" not in str(refused.value)
            continue
        begun, objects = asyncio.run(_begin(task, "tests/odd:1"))
        assert not [each for each in FUTURE["tests/odd:1"] if each in objects] and fields["base_commit"] in objects
        assert len(begun.tree) == 40 and begun.untracked == []


def patch_of(played):
    return played.metadata[OUTCOME]["patch"]


WORK = "printf 'a\\0b' > new.bin; echo x > 'a file'; chmod +x 'a file'; rm README; echo more >> lib.sh"
SETTINGS = "git config diff.noprefix true; git config color.ui always; git config diff.mnemonicPrefix true"


def test_a_patch_is_all_that_differs_whatever_git_was_told(tmp_path):
    [task] = tasks_of(tmp_path, row(TAP_IMAGE))
    patches = []
    for more in ("git add -A; git commit -qm mine", f"{SETTINGS}; git checkout -q --orphan other; rm .git/index"):
        settings = "export HOME=/tmp; git config user.email a@b; git config user.name a"
        played, shown = episode(task, f"{settings}; {WORK}; {more}", scored=False)
        assert shown == [""], shown
        patches.append(patch_of(played))
    assert len(set(patches)) == 1
    for line in ("GIT binary patch", "new file mode 100755", "deleted file mode 100644", "+more", "--- a/lib.sh"):
        assert line in patches[0]


def test_large_patches_and_those_without_a_repository_are_none(tmp_path):
    [task] = tasks_of(tmp_path, row(TAP_IMAGE))
    played, _ = episode(task, "seq 1 300000 > many")
    assert played.metadata[OUTCOME]["too_large"] and played.reward.info["too_large"] and played.reward.value == 0.0
    played, _ = episode(task, "rm -rf .git")
    assert patch_of(played) == "" and played.metadata[OUTCOME]["error"] and played.reward.value == 0.0


def test_a_patch_has_any_bytes_and_no_files_that_git_did_not_know(tmp_path):
    [task] = tasks_of(tmp_path, row(SYMPY_IMAGE))
    played, shown = episode(task, "cat *.o; echo y > '[a] b*#.o'; printf 'a \\377 b\\n' > latin", scored=False)
    assert shown == ["x"] and "b/latin" in patch_of(played) and ".o" not in patch_of(played)
    assert "GIT binary patch" in patch_of(played)


def test_an_agent_with_tools_of_its_own_works_in_the_repository(tmp_path):
    [task] = tasks_of(tmp_path, row(TAP_IMAGE))
    image_repository._places.clear()

    async def worked():
        environment = EnvironmentMaker("bubblewrap", images=folder_of_images(), repositories=None).make(task)
        sandbox = await environment.open_workspace(task, SandboxSpec())
        try:
            result = await sandbox.exec(["sh", "-c", "git log --all --format=%s | sort; echo more >> lib.sh"])
            return environment.folder, result.stdout, await environment.collect()
        finally:
            await environment.close()

    folder, subjects, outcome = asyncio.run(worked())
    assert (folder, subjects) == ("/srv/the project", b"base\nbefore\n") and "+more" in outcome["patch"]
