"""Small environments written with the package verifiers itself, one of each of its kinds."""

import json

import httpx
import verifiers as vf


def rows(*questions, **more):
    from datasets import Dataset

    return Dataset.from_list(
        [{"question": question, "answer": answer, "info": json.dumps(more)} for question, answer in questions]
    )


def text_of(completion):
    last = completion[-1] if completion else None
    content = last.get("content") if isinstance(last, dict) else getattr(last, "content", "")
    return content or ""


def exact(completion, answer):
    return float(text_of(completion).strip() == answer)


def turns(state):
    return len(state["trajectory"])


class Guessing(vf.MultiTurnEnv):
    """Says higher or lower until the number is found."""

    async def setup_state(self, state):
        state["tries"] = 0
        return state

    async def env_response(self, messages, state, **options):
        guess, secret = text_of(messages).strip(), int(state["answer"])
        state["tries"] += 1
        if guess == str(secret):
            state["final_env_response"] = [{"role": "user", "content": "Right."}]
            return state["final_env_response"]
        if not guess.isdecimal():
            return [{"role": "user", "content": "That is no number."}]
        return [{"role": "user", "content": "higher" if int(guess) < secret else "lower"}]


def found(state):
    return float(state.get("final_env_response") is not None)


class Forgetful(Guessing):
    """Shows the last guess alone, as an environment that rewrites its history does."""

    async def get_prompt_messages(self, state):
        prompt = await super().get_prompt_messages(state)
        return prompt if len(prompt) < 3 else [*prompt[:1], *prompt[3:]]


async def judged(completion):
    raise RuntimeError("no verdict") from httpx.ConnectError("the judge cannot be reached")


def careless(completion):
    return float(int(text_of(completion)) > 0)


def add(first: int, second: int) -> int:
    """Adds two numbers.

    Args:
        first: a number.
        second: another one.
    """
    return first + second


def guessing(kind, **options):
    return kind(dataset=rows(("Guess.", "5"), ("Guess.", "3")), rubric=vf.Rubric([found, turns], [1.0, 0.0]), **options)


def single(*functions):
    questions = [(f"What is {n} + {n}?", str(2 * n)) for n in range(40)]
    return vf.SingleTurnEnv(dataset=rows(*questions), system_prompt="Say a number.", rubric=vf.Rubric(list(functions)))


def tools():
    return vf.ToolEnv(tools=[add], dataset=rows(("What is 2 + 3?", "5")), rubric=vf.Rubric([exact]), max_turns=5)


def stateful():
    def put(value: str, shelf: dict) -> str:
        """Puts a value onto the shelf.

        Args:
            value: what is put there.
            shelf: whose it is.
        """
        shelf["value"] = value
        return f"{value} is there"

    class Shelf(vf.StatefulToolEnv):
        async def setup_state(self, state, **options):
            state["shelf"] = {}
            return await super().setup_state(state, **options) or state

        def update_tool_args(self, tool_name, tool_args, messages, state, **options):
            return {**tool_args, "shelf": state["shelf"]}

    def shelved(state, answer):
        return float(state["shelf"].get("value") == answer)

    made = Shelf(dataset=rows(("Put 'tea' there.", "tea")), rubric=vf.Rubric([shelved]), max_turns=5)
    made.add_tool(put, args_to_skip=["shelf"])
    return made


def group_reward(completions):
    return [0.0 for _ in completions]


MAKERS = {
    "single": lambda: single(exact),
    "careless": lambda: single(exact, careless),
    "judged": lambda: single(exact, judged),
    "group": lambda: single(group_reward),
    "multi": lambda: guessing(Guessing, max_turns=4),
    "forgetful": lambda: guessing(Forgetful, max_turns=4),
    "tools": tools,
    "stateful": stateful,
}


def load_environment(kind="single"):
    return MAKERS[kind]()
