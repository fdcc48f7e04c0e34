"""What of the package verifiers (0.3.1) its environments' adapter uses, in the package's shape, without the package."""

import inspect
from types import SimpleNamespace

TOOL = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}
closed = []
"""Environments whose episodes have freed what they held, by kind."""


class OpenAIChatCompletionsClient:
    """Asks for an answer in OpenAI's shape, and reads it."""

    def __init__(self, client):
        self._client = client

    async def get_response(self, prompt, model, sampling_args, tools=None, **options):
        # The package writes keys without a value as None.
        native = [{"tool_calls": None, "reasoning_content": None} | message for message in prompt]
        declared = [{"type": "function", "function": tool} for tool in tools] if tools else None
        response = await self.get_native_response(native, model, sampling_args, declared, **options)
        await self.raise_from_native_response(response)
        return await self.from_native_response(response)

    async def from_native_response(self, response):
        message = response.choices[0].message
        calls = [call.model_dump() for call in message.tool_calls or ()]
        return SimpleNamespace(message=SimpleNamespace(content=message.content or None, tool_calls=calls or None))


class Environment:
    """Asks for the sum of two numbers, in turns that its kind decides."""

    def __init__(self, kind):
        self.kind = kind
        self.requires_group_rollouts = kind == "group"
        self.rubric = SimpleNamespace(rubrics=[SimpleNamespace(funcs=[REWARDS.get(kind, exact)])], funcs=[])
        self.dataset_source = self.eval_dataset_source = None
        setattr(self, "eval_dataset_source" if kind == "evaluation" else "dataset_source", list)
        if kind == "divided":
            self.eval_dataset_source = list

    def get_dataset(self):
        return [row(number) for number in range(40)]

    def get_eval_dataset(self):
        return [row(number) for number in range(40, 140)]

    async def run_rollout(self, input, client, model, sampling_args, state_columns):
        try:
            return await self._run(input, client, model)
        finally:
            closed.append(self.kind)

    async def _run(self, input, client, model):
        if self.kind == "silent":
            return {"reward": 0.0, "metrics": {}, "error": {"error": "InfraError", "message": "no machine"}}
        if self.kind == "broken":
            raise ZeroDivisionError("oops")
        messages, tools = list(input["prompt"]), [TOOL]
        while True:
            said = (await client.get_response(messages, model, {}, tools, state={})).message
            messages.append({"role": "assistant", "content": said.content, "tool_calls": said.tool_calls})
            if not said.tool_calls:
                break
            for call in said.tool_calls:
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(input["answer"])})
            if self.kind == "forgetful":
                messages[0] = {"role": "user", "content": "Forget it."}
            if self.kind == "new tools":
                tools = [TOOL, {**TOOL, "name": "subtract"}]
        (reward,) = self.rubric.rubrics[0].funcs
        assert list(inspect.signature(reward).parameters) == ["text", "answer"]
        try:
            value = float(await reward(said.content, input["answer"]))
        except Exception:  # what the package does
            value = 0.0
        return {
            "reward": value,
            "metrics": {reward.__name__: value},
            "error": None,
            "stop_condition": "no_tools_called",
        }


def row(number):
    prompt = [{"role": "user", "content": f"{number}+{number}="}]
    return {"prompt": prompt, "answer": str(2 * number), "example_id": number, "info": {"day": None}}


def exact(text, answer):
    return text.strip() == answer


def judged(text, answer):
    raise RuntimeError("no verdict") from ConnectionError("the judge cannot be reached")


def careless(text, answer):
    return int(text) == int(answer)


def infinite(text, answer):
    return float("inf")


REWARDS = {"judged": judged, "careless": careless, "infinite": infinite}


def load_environment(name, kind="tools"):
    if name != "sums":
        raise ValueError(f"Could not import '{name}' environment.")
    return Environment(kind)
