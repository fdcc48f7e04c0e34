"""The official clients of the chat dialects behind one interface: a history goes in, an answer comes out."""

import json
from typing import Any, NamedTuple

import anthropic
import openai
from openai.lib.streaming.chat import ChatCompletionStreamState

from tests.agents.api.sample import NAME

COUNTED = {"include_usage": True}
ENDS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
SCHEMA = {"type": "object", "properties": {"cmd": {"type": "string"}}}


class Answer(NamedTuple):
    """An answer, whole or gathered from a stream.

    Attributes:
        thought: its reasoning.
        text: its text.
        calls: of each tool call its id, name and arguments as JSON.
        finish: ``stop``, ``length`` or ``tool_calls``.
        usage: tokens of the prompt, those of them that were cached, and tokens of the answer.
        echo: the answer as the client sends it back.
    """

    thought: str
    text: str
    calls: list[tuple[str, str, str]]
    finish: str
    usage: tuple[int, int, int]
    echo: list[dict[str, Any]]


def user(text):
    return {"role": "user", "content": text}


def joined(parts):
    return "".join(part or "" for part in parts)


class Chat:
    """OpenAI's chat completions."""

    limit, unthinking = "max_tokens", {"extra_body": {"chat_template_kwargs": {"thinking": False}}}

    def __init__(self, url, key="none"):
        self.api = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=30)

    def ask(self, history, *, system="", tools=(), stream=False, **options):
        messages = [{"role": "developer", "content": system}] * bool(system) + history
        declared = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in tools]
        options = {"model": NAME, "messages": messages, "tools": declared} | options
        if stream:
            state = ChatCompletionStreamState()
            for chunk in self.api.chat.completions.create(**options, stream=True, stream_options=COUNTED):
                state.handle_chunk(chunk)
            whole = state.current_completion_snapshot
        else:
            whole = self.api.chat.completions.create(**options)
        [choice], usage = whole.choices, whole.usage
        echo = choice.message.model_dump(exclude_none=True, exclude={"parsed"})
        for call in echo.get("tool_calls", ()):
            call["function"].pop("parsed_arguments", None)
        calls = [(c.id, c.function.name, c.function.arguments) for c in choice.message.tool_calls or ()]
        thought = echo.get("reasoning_content", "")
        counts = usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens, usage.completion_tokens
        return Answer(thought, choice.message.content or "", calls, choice.finish_reason, counts, [echo])

    @staticmethod
    def results(calls, text):
        return [{"role": "tool", "tool_call_id": call[0], "content": text} for call in calls]


class Responses:
    """OpenAI's responses."""

    limit, unthinking = "max_output_tokens", {"reasoning": {"effort": "none"}}

    def __init__(self, url, key="none"):
        self.api = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=30)

    def ask(self, history, *, system="", tools=(), stream=False, **options):
        declared = [{"type": "function", "name": name, "parameters": SCHEMA, "strict": False} for name in tools]
        options = {"model": NAME, "input": history, "instructions": system, "tools": declared, "store": False} | options
        if stream:
            events = list(self.api.responses.create(**options, stream=True))
            assert [event.sequence_number for event in events] == list(range(len(events)))
            response = events[-1].response
            assert events[-1].type == f"response.{response.status}"
            done = [event.item for event in events if event.type == "response.output_item.done"]
            assert done == response.output
        else:
            response = self.api.responses.create(**options)
        assert not response.model_extra and not any(item.model_extra for item in response.output)
        calls = [(i.call_id, i.name, i.arguments) for i in response.output if i.type == "function_call"]
        finish = "length" if response.status == "incomplete" else "tool_calls" if calls else "stop"
        assert (finish == "length") == (response.incomplete_details is not None)
        usage = response.usage
        counts = usage.input_tokens, usage.input_tokens_details.cached_tokens, usage.output_tokens
        thought = joined(item.summary[0].text for item in response.output if item.type == "reasoning")
        exclude = {"parsed_arguments", "status"}
        echo = [item.model_dump(exclude_none=True, exclude=exclude) for item in response.output]
        return Answer(thought, response.output_text, calls, finish, counts, echo)

    @staticmethod
    def results(calls, text):
        return [{"type": "function_call_output", "call_id": call[0], "output": text} for call in calls]


class Messages:
    """Anthropic's messages."""

    limit, unthinking = "max_tokens", {"thinking": {"type": "disabled"}}

    def __init__(self, url, key="none"):
        self.api = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, timeout=30)

    def ask(self, history, *, system="", tools=(), stream=False, **options):
        declared = [{"name": name, "input_schema": SCHEMA} for name in tools]
        options = {"model": NAME, "max_tokens": 80, "messages": history, "tools": declared, "system": system} | options
        if stream:
            with self.api.messages.stream(**options) as events:
                message = events.get_final_message()
        else:
            message = self.api.messages.create(**options)
        assert not message.model_extra and not any(block.model_extra for block in message.content)
        calls = [
            (b.id, b.name, json.dumps(b.input, ensure_ascii=False)) for b in message.content if b.type == "tool_use"
        ]
        usage, cached = message.usage, message.usage.cache_read_input_tokens
        counts = usage.input_tokens + cached, cached, usage.output_tokens
        text = joined(block.text for block in message.content if block.type == "text")
        thought = joined(block.thinking for block in message.content if block.type == "thinking")
        echo = [{"role": "assistant", "content": [block.model_dump() for block in message.content]}]
        return Answer(thought, text, calls, ENDS[message.stop_reason], counts, echo)

    @staticmethod
    def results(calls, text):
        blocks = [{"type": "tool_result", "tool_use_id": call[0], "content": text} for call in calls]
        return [{"role": "user", "content": blocks}]


CLIENTS = {"chat/completions": Chat, "responses": Responses, "messages": Messages}
