"""Launch specs for the tests, and what a shell or a cluster makes of them."""

import dataclasses
import os
import re
import shutil
import subprocess

from hypothesis import strategies as st

from k2jax.pods.launch_spec import LaunchSpec
from k2jax.pods.slices import parse_slice

SPEC = LaunchSpec(
    name="k2",
    tpu=parse_slice("v5p:8x8x16"),
    slices=1,
    image="us-docker.pkg.dev/my-project/k2jax/train:1",
    arguments=("--config=experiments/pretrain/nano.py", "--config.train.steps=30"),
    workdir="gs://bucket/runs/k2",
    project="my-project",
    zone="us-east5-a",
    cluster="my-cluster",
)

HARD = (
    "it's",
    '"',
    "$(HOME)",
    "$$(A)",
    "$HOME `id` \\",
    "a\nEND\nb",
    "1e3",
    "no",
    "#",
    "- x: y",
    "{a}",
    "é≠\u2028",
    "",
)
"""Text that shells, YAML parsers and Kubernetes are known to stumble on."""
any_text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
texts = st.lists(st.sampled_from(HARD) | any_text, max_size=3).map("".join)
one_line = texts.map(lambda text: "".join(c for c in text if c.isprintable()))
folder_parts = one_line.map(lambda text: "f" + text.translate(dict.fromkeys(map(ord, "/*?[]"), "_")))


def run(**changes) -> LaunchSpec:
    for flag in ("tpu", "engines"):
        if isinstance(changes.get(flag), str):
            changes[flag] = parse_slice(changes[flag])
    return dataclasses.replace(SPEC, **changes)


def expand(text, environment):
    """Kubernetes' ``$(NAME)`` in commands and environments, after its documentation: ``$$`` is an escaped ``$``."""
    return re.sub(r"\$\$|\$\(([^()]*)\)", lambda m: "$" if m[0] == "$$" else environment.get(m[1], m[0]), text)


TOOLS = ["bash", "cat", "cp", "grep", "head", "mktemp", "printf", "rm", "sed", "sort", "tail", "touch", "wc"]


def fake_commands(folder, **scripts):
    """An environment with commands of these names, each a bash script, and of the real ones with TOOLS alone."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(exist_ok=True)
    for name in TOOLS:
        if not (bin_folder / name).exists():
            (bin_folder / name).symlink_to(shutil.which(name))
    for name, script in scripts.items():
        path = bin_folder / name.replace("_", "-")
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
    return {**os.environ, "PATH": str(bin_folder), "T": str(folder)}


def bash(script, environment, timeout=60):
    return subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=timeout)


def words_of(path):
    """The words that ``printf '%s\\0' "$@"`` wrote."""
    return path.read_bytes().decode().split("\0")[:-1]
