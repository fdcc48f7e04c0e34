"""Groups of responses, and judges written by a test, which read a compact question and answer with text."""

import asyncio

from k2jax.agents.judges.judge import Judge
from k2jax.agents.judges.judge_formats import JUDGE_FORMATS
from k2jax.agents.mixture import DrawnTask
from k2jax.agents.task import Task
from k2jax.client import ScriptedClient
from k2jax.config import replace_keys
from k2jax.config.schema import CriticConfig, RLConfig, RolloutConfig, TaskConfig
from k2jax.rl.groups import PromptGroup
from k2jax.rl.methods.critic import Critic
from k2jax.text import byte_tokenizer
from k2jax.text.plain_chat import PlainChat
from k2jax.trajectory import Node, Reward, Trajectory
from tests.rl.tiny import tiny

TOKENIZER = byte_tokenizer()


def group(answers, key=(1, 0), kind="open", rewards=None, status=None, purpose="train"):
    """A complete group of answers to one question; ``rewards`` are those of a verifier."""
    task = Task("q", "open", ({"role": "user", "content": "why?"},), "final_answer" if rewards is not None else "")
    trajectories = []
    for sample, answer in enumerate(answers):
        each = Trajectory("q", "open", (*key, sample), status=(status or {}).get(sample, "finished"), purpose=purpose)
        each.add(Node.observed(-1, [1], {"role": "user", "content": "why?"}))
        node = Node.observed(0, [2], {"role": "assistant", "content": answer})
        each.nodes.append(type(node)(**{**node.__dict__, "turn": 0, "finish": "stop"}))
        each.reward = None if rewards is None else Reward(rewards[sample])
        trajectories.append(each)
    return PromptGroup(0, key, DrawnTask(kind, task), trajectories, purpose=purpose)


def scripted(judge):
    """A client that answers a question ``Q...|A...|B...>`` with ``judge(first, second)``."""

    def reply(prompt, sampling):
        assert sampling.temperature == 0
        question = TOKENIZER.decode(list(prompt[1:]))
        first, second = question.removesuffix(">").split("|")[1:]
        said = judge(first.removeprefix("A"), second.removeprefix("B"))
        return [*TOKENIZER.encode(said), TOKENIZER.eos]

    return ScriptedClient(reply)


def critic(client, log=None, share=0.0, rubrics=(), **options):
    """A critic over any client, by compact questions."""
    settings = CriticConfig(format="compact", max_tokens=3, share=share)
    tasks = {"open": TaskConfig(verifier_weight=0.0, judge_weight=1.0), "verified": TaskConfig()}
    rl = RLConfig(tasks=tasks, critic=settings, rollout=RolloutConfig(prompts=8, samples=4))
    style = JUDGE_FORMATS["compact"]
    judge = Judge(client, PlainChat(TOKENIZER), TOKENIZER, style, name="judge", max_tokens=3, log=log, **options)
    made = Critic(replace_keys(tiny(), {"rl": rl}), rubrics)
    made.judge_with(judge, asyncio.gather)
    return made


def compared(client, groups, **options):
    """The rewards of the groups' samples by a judge; None for masked ones."""
    critic_of_test = critic(client, **options)
    asyncio.run(critic_of_test.compare(groups))
    return [[None if t.status == "masked" else t.reward.value for t in each.trajectories] for each in groups]
