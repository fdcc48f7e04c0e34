"""What inspect-ai 0.3 finds here by its entry point: a model ``k2jax/CHECKPOINT`` and a sandbox ``k2jax``.

    inspect eval my_task.py --model k2jax/runs/sft -M max_length=4096
    Task(..., sandbox="k2jax")                                                # or ("k2jax", "nsjail")

The model is an engine in this process, the sandbox one of this project's, by default bubblewrap: without a network,
with bounded memory, processes and files.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    modelapi,
)
from inspect_ai.tool import ToolCall, ToolChoice, ToolInfo
from inspect_ai.util import ExecResult, OutputLimitExceededError, SandboxEnvironment, sandboxenv

from k2jax.agents.messages import read_message
from k2jax.agents.sandbox import Sandbox, SandboxError, SandboxSpec
from k2jax.agents.sandbox.backends import make_backend
from k2jax.client import Client, Sampling
from k2jax.errors import UserError
from k2jax.evaluate.models import ModelChoice, open_engine_client, vocabulary_of
from k2jax.text.chat import ChatBuilder, ChatFormat, configured_chat
from k2jax.text.tokenizer import Tokenizer

LARGEST_OUTPUT = 10 << 20
"""Bytes of each output of a command, and of a file that is read: inspect's own limit of outputs."""
_SECONDS = 600.0  # of a command without a time limit of its own


@modelapi(name="k2jax")
class K2JaxAPI(ModelAPI):
    """A model of inspect-ai: a checkpoint's engine, or a client of token ids.

    Args:
        model_name: a checkpoint argument.
        base_url: has no meaning here.
        api_key: has no meaning here.
        config: see ``generate``.
        max_length: the engine's longest sequence [tokens].
        slots: sequences that it runs at a time.
        chat_format: see ``configured_chat``; empty is the checkpoint's own.
        client: generates in the place of the checkpoint's engine, with ``tokenizer``.
        tokenizer: the vocabulary of ``client``.

    Raises:
        UserError: the checkpoint cannot be opened, or a URL or key is given.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        *,
        max_length: int = 4096,
        slots: int = 16,
        chat_format: str = "",
        client: Client | None = None,
        tokenizer: Tokenizer | None = None,
    ):
        super().__init__(model_name, None, None, [], config or GenerateConfig())
        if base_url or api_key:
            raise UserError("a k2jax model is an engine in this process: leave its URL and key out")
        self._opened, self._longest = contextlib.ExitStack(), max_length
        self._chat: ChatFormat
        if client is not None and tokenizer is not None:
            self._client, self._chat = client, configured_chat(tokenizer, chat_format or "auto")
            return
        choice = ModelChoice(model=model_name, max_length=max_length, slots=slots, chat_format=chat_format)
        _, self._chat = vocabulary_of(choice)
        self._client, _ = self._opened.enter_context(open_engine_client(choice))

    async def aclose(self) -> None:
        """Ends the engine."""
        self._opened.close()

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        """The next message; of ``config`` its limits, temperature, top-p, top-k and seed are read.

        Raises:
            UserError: a message or tool is none that the chat format knows, or a call is required.
        """
        if tool_choice not in ("auto", "none"):
            raise UserError(f"the choice of tools {tool_choice!r} cannot be kept here; use auto or none")
        declared = [_declared(tool) for tool in tools] if tool_choice == "auto" else []
        builder = ChatBuilder(self._chat, declared)
        for message in input:
            builder.add(_openai(message))
        builder.open_assistant(True)
        prompt = builder.tokens
        sampling = {
            "temperature": config.temperature, "top_p": config.top_p, "top_k": config.top_k, "seed": config.seed,
        }  # fmt: skip
        completion = await self._client.generate(
            prompt,
            Sampling(
                max_tokens=config.max_tokens or max(1, self._longest - len(prompt)),
                **{name: value for name, value in sampling.items() if value is not None},
                stop_tokens=(self._chat.end,),
            ),
        )
        message = read_message(self._chat, completion.tokens, True, prompt)
        calls = [_call(call) for call in message.get("tool_calls", ())]
        reasons = {"length": "max_tokens", "stop": "tool_calls" if calls else "stop"}
        answer = ChatMessageAssistant(
            content=_contents(message), tool_calls=calls or None, model=self.model_name, source="generate"
        )
        read, written = len(prompt), len(completion.tokens)
        return ModelOutput(
            model=self.model_name,
            choices=[ChatCompletionChoice(message=answer, stop_reason=reasons[completion.finish])],
            usage=ModelUsage(input_tokens=read, output_tokens=written, total_tokens=read + written),
        )


def _declared(tool: ToolInfo) -> dict[str, Any]:
    parameters = tool.parameters.model_dump(exclude_none=True)
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def _openai(message: ChatMessage) -> dict[str, Any]:
    """A message in OpenAI's format."""
    found: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.role == "tool":
        text = f"Error: {message.error.message}" if message.error else message.text
        return found | {"content": text, "tool_call_id": message.tool_call_id or ""}
    if message.role == "assistant" and message.tool_calls:
        found["tool_calls"] = [
            {"id": call.id, "type": "function",
             "function": {"name": call.function, "arguments": json.dumps(call.arguments, ensure_ascii=False)}}
            for call in message.tool_calls
        ]  # fmt: skip
    if message.role == "assistant" and not isinstance(message.content, str):
        thoughts = [part.reasoning for part in message.content if isinstance(part, ContentReasoning)]
        found |= {"reasoning_content": "".join(thoughts)} if thoughts else {}
    return found


def _contents(message: dict[str, Any]) -> str | list[Any]:
    text = str(message.get("content") or "")
    if thought := message.get("reasoning_content"):
        return [ContentReasoning(reasoning=thought), ContentText(text=text)]
    return text


def _call(call: dict[str, Any]) -> ToolCall:
    """A call; arguments that are no object are an error that the model is told."""
    function, problem = call["function"], None
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        arguments, problem = {}, "the arguments are no JSON object"
    return ToolCall(id=call["id"], function=function["name"], arguments=arguments, parse_error=problem)


@sandboxenv(name="k2jax")
class K2JaxSandbox(SandboxEnvironment):
    """A sandbox of inspect-ai: one of this project's for each sample; the configuration is a backend's name."""

    def __init__(self, sandbox: Sandbox):
        super().__init__()
        self._sandbox = sandbox

    @classmethod
    async def sample_init(
        cls, task_name: str, config: Any | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """A new sandbox."""
        backend = make_backend(config if isinstance(config, str) else "bubblewrap")
        return {"default": cls(await backend.open(SandboxSpec()))}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any | None, environments: dict[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        """Ends all that runs in the sandbox, and deletes its files."""
        for environment in environments.values():
            await environment.as_type(cls)._sandbox.close()

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        *,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Runs a command; it is not run again after a time limit.

        Raises:
            TimeoutError: it ran into its time limit.
            OutputLimitExceededError: an output is longer than ``LARGEST_OUTPUT``.
            UserError: another user is asked for.
        """
        if user is not None:
            raise UserError(f"commands run as the sandbox's one user, not as {user!r}")
        ended = await self._sandbox.exec(
            cmd,
            stdin=input.encode() if isinstance(input, str) else input or b"",
            cwd=self._path(cwd) if cwd else "",
            env=env,
            timeout=float(timeout or _SECONDS),
            output_limit=LARGEST_OUTPUT,
        )
        if ended.timed_out:
            raise TimeoutError(f"the command ran for more than {timeout or _SECONDS:g} s")
        stdout, stderr = (output.decode(errors="replace") for output in (ended.stdout, ended.stderr))
        if ended.truncated:
            raise OutputLimitExceededError(f"{LARGEST_OUTPUT >> 20} MiB", stdout)
        return ExecResult(ended.code == 0, ended.code, stdout, stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Writes a file inside."""
        await self._sandbox.write(self._path(file), contents.encode() if isinstance(contents, str) else contents)

    async def read_file(self, file: str, text: bool = True) -> Any:
        """The contents of a regular file inside.

        Raises:
            FileNotFoundError: there is none.
            OutputLimitExceededError: it is longer than ``LARGEST_OUTPUT``.
        """
        try:
            raw = await self._sandbox.read(self._path(file), LARGEST_OUTPUT + 1)
        except SandboxError as error:
            raise FileNotFoundError(str(error)) from None
        if len(raw) > LARGEST_OUTPUT:
            raise OutputLimitExceededError(f"{LARGEST_OUTPUT >> 20} MiB", None)
        return raw.decode() if text else raw

    def _path(self, path: str) -> str:
        return path if path.startswith("/") else f"{self._sandbox.workdir}/{path}"
