"""Agents that are known to work behind the gateway, offline: their commands, settings and versions.

Their settings turn off what was seen of these versions without a network: looking for updates and models, telemetry,
sharing, plugins, titles. Those that plan with a context's size get the engine's. ``patience`` is that of the clients of
these versions: 600 s of OpenAI's, and of litellm's completions.
"""

from __future__ import annotations

import json
from typing import Any

from k2jax.agents.gateway.agents import BlackBoxAgent

_NODE = "npm:node@24"  # npm installs something else, without a word, where Node is too old for a package
_CONTEXT, _ANSWER = "${context}", "${max_tokens}"
_PATIENCE = 600.0


def _with_numbers(values: dict[str, Any]) -> str:
    """Values as JSON; the placeholders of sizes become numbers."""
    text = json.dumps(values)
    for name in (_CONTEXT, _ANSWER):
        text = text.replace(f'"{name}"', name)
    return text


_CLAUDE_CODE = BlackBoxAgent(
    name="claude_code",
    argv=(
        "claude", "--bare", "-p", "${task}", "--model", "${model}", "--tools", "Bash,Edit,Read,Write",
        "--allowedTools", "Bash,Edit,Read,Write", "--no-session-persistence", "--output-format", "json",
    ),
    env={
        "ANTHROPIC_BASE_URL": "${base}", "ANTHROPIC_API_KEY": "${key}",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": _CONTEXT, "CLAUDE_CODE_MAX_OUTPUT_TOKENS": _ANSWER,
    },
    packages=("npm:@anthropic-ai/claude-code@2.1.330", _NODE),
    needs_cgroup=True,
    programs=("bash",),
)  # fmt: skip

_CODEX = BlackBoxAgent(
    name="codex",
    argv=("codex", "exec", "--ephemeral", "--skip-git-repo-check", "-s", "danger-full-access", "${task}"),
    env={"LOCAL_KEY": "${key}", "CODEX_HOME": "${home}/.codex"},
    files={
        "${home}/.codex/config.toml": "\n".join((
            'model = "${model}"', 'model_provider = "local"', "check_for_update_on_startup = false",
            'web_search = "disabled"', f"model_context_window = {_CONTEXT}",
            "[model_providers.local]", 'name = "local"', 'base_url = "${base}/v1"', 'env_key = "LOCAL_KEY"',
            'wire_api = "responses"', "stream_idle_timeout_ms = 86400000",  # it counts events, and no comments
            "[analytics]", "enabled = false", "[features]",
            "plugins = false", "apps = false", "",
        )),
    },
    packages=("npm:@openai/codex@0.169.0", _NODE),
    needs_cgroup=True,
)  # fmt: skip

_PI = BlackBoxAgent(
    name="pi",
    argv=("pi", "-p", "--no-session", "--provider", "local", "--model", "${model}", "${task}"),
    env={"PI_OFFLINE": "1"},
    files={
        "${home}/.pi/agent/models.json": _with_numbers({"providers": {"local": {
            "baseUrl": "${base}/v1", "api": "openai-completions", "apiKey": "${key}",
            "models": [{"id": "${model}", "reasoning": True, "contextWindow": _CONTEXT, "maxTokens": _ANSWER}],
        }}}),
    },
    packages=("npm:@mariozechner/pi-coding-agent@0.73.1", _NODE),
    needs_cgroup=True,
)  # fmt: skip


def _opencode_config() -> str:
    models = {"${model}": {"limit": {"context": _CONTEXT, "output": _ANSWER}}}
    options = {"baseURL": "${base}/v1", "apiKey": "${key}"}
    local = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": models}
    chosen = {"model": "local/${model}", "small_model": "local/${model}"}
    # Its permission "ask" would wait for a person. The title is given on the command line.
    title = {"title": {"disable": True}}
    return _with_numbers({"autoupdate": False, "agent": title, "provider": {"local": local}, **chosen})


_OPENCODE = BlackBoxAgent(
    name="opencode",
    argv=("opencode", "run", "--title", "task", "${task}"),
    env={
        "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1", "OPENCODE_DISABLE_SHARE": "1",
        "OPENCODE_CONFIG_CONTENT": _opencode_config(),
    },
    packages=("npm:opencode-ai@1.18.33", _NODE),
    needs_cgroup=True,
)  # fmt: skip

_KILO = BlackBoxAgent(
    name="kilo",
    argv=("kilo", "run", "--auto", "--title", "task", "${task}"),
    env={
        "KILO_DISABLE_AUTOUPDATE": "1", "KILO_DISABLE_MODELS_FETCH": "1", "KILO_DISABLE_LSP_DOWNLOAD": "1",
        "KILO_DISABLE_DEFAULT_PLUGINS": "1", "KILO_DISABLE_SHARE": "1", "KILO_TELEMETRY_LEVEL": "off",
        "KILO_DISABLE_PRESENCE": "1", "KILO_DISABLE_SESSION_INGEST": "1", "KILO_CONFIG_CONTENT": _opencode_config(),
    },
    packages=("npm:@kilocode/cli@7.7.7", _NODE),
    needs_cgroup=True,
)  # fmt: skip

_CLINE = BlackBoxAgent(
    name="cline",
    argv=(
        "/bin/sh", "-c",
        'cline auth -p openai -k "$$KEY" -b "$$BASE/v1" -m "$$MODEL" > /dev/null && '
        'exec cline -P openai -m "$$MODEL" --json --compaction off -t 100 "$$1" < /dev/null',
        "cline", "${task}",
    ),
    env={
        "KEY": "${key}", "BASE": "${base}", "MODEL": "${model}", "CLINE_NO_AUTO_UPDATE": "1",
        "OTEL_SDK_DISABLED": "true", "DO_NOT_TRACK": "1",
    },
    packages=("npm:cline@3.0.65", _NODE),
    needs_cgroup=True,
    programs=("/bin/bash",),
)  # fmt: skip

_OPENCLAW = BlackBoxAgent(
    name="openclaw",
    argv=("openclaw", "agent", "--local", "--session-id", "task", "--json", "--message", "${task}"),
    files={
        "${home}/.openclaw/openclaw.json": _with_numbers({
            "models": {"mode": "replace", "providers": {"local": {
                "baseUrl": "${base}/v1", "apiKey": "${key}", "api": "openai-completions",
                "models": [{"id": "${model}", "name": "${model}", "reasoning": True, "input": ["text"],
                            "contextWindow": _CONTEXT, "maxTokens": _ANSWER}],
            }}},
            "agents": {"defaults": {
                "model": {"primary": "local/${model}"}, "workspace": "${work}", "skipBootstrap": True,
            }},
        }),
    },
    packages=("npm:openclaw@2026.9.6", _NODE),
    needs_cgroup=True,
)  # fmt: skip

_MINI = BlackBoxAgent(
    name="mini_swe_agent",
    argv=(
        "python", "-m", "minisweagent.run.mini", "-y", "--exit-immediately", "-m", "openai/${model}", "-t", "${task}",
        "-o", "${home}/run.json",
    ),
    env={
        "MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_SILENT_STARTUP": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_API_KEY": "${key}", "OPENAI_API_BASE": "${base}/v1",
        "PYTHONDONTWRITEBYTECODE": "1",
    },
    packages=("pypi:mini-swe-agent==2.4.6", "pypi:mcp==2.3.0"),  # its client of models imports mcp without saying so
    patience=_PATIENCE,
)  # fmt: skip

_SMOLAGENTS_PROGRAM = '''\
import subprocess, sys
from smolagents import OpenAIServerModel, ToolCallingAgent, tool

@tool
def shell(command: str) -> str:
    """Runs a shell command in the folder of the task and returns its output.

    Args:
        command: what /bin/sh runs.
    """
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, errors="replace")
    return done.stdout + done.stderr + (f"[exit code {done.returncode}]" if done.returncode else "")

model = OpenAIServerModel(model_id="${model}", api_base="${base}/v1", api_key="${key}")
ToolCallingAgent(tools=[shell], model=model, max_steps=30, verbosity_level=0).run(sys.argv[1])
'''

_SMOLAGENTS = BlackBoxAgent(
    name="smolagents",
    argv=("python", "${home}/agent.py", "${task}"),
    env={"PYTHONDONTWRITEBYTECODE": "1"},
    files={"${home}/agent.py": _SMOLAGENTS_PROGRAM},
    packages=("pypi:smolagents[openai]==1.26.0",),
    patience=_PATIENCE,
)

AGENTS = {
    agent.name: agent for agent in (_CLAUDE_CODE, _CLINE, _CODEX, _KILO, _MINI, _OPENCLAW, _OPENCODE, _PI, _SMOLAGENTS)
}
"""Agents by name."""
