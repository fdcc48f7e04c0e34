"""Agents: a system prompt and a set of a world's tools, which differ in persona, autonomy and language."""

from __future__ import annotations

from k2jax.synthesize.asking import Asker
from k2jax.synthesize.stages import Made, Record
from k2jax.synthesize.tools.domain_worlds import Work

PERSONAS = (
    "a patient clerk",
    "a brisk operator",
    "a cheerful host",
    "a careful bookkeeper",
    "a trainee who checks twice",
)
AUTONOMY = (
    "You act at once where you know enough.",
    "You say what you are going to do before you change anything.",
    "You ask one question at a time.",
)
_SCHEMA = {
    "type": "object",
    "required": ["system", "tools"],
    "properties": {
        "system": {"type": "string", "maxLength": 4000},
        "tools": {"type": "array", "items": {"type": "string"}, "minItems": 2},
    },
}


def agents(agents: int, seed: int) -> Work:
    """The stage that asks for so many agents of a world, each of another persona and autonomy."""

    async def work(record: Record, asker: Asker) -> Made:
        spec = record["world"]
        names = [tool["name"] for tool in spec["tools"]]
        made: list[Record] = []
        for number in range(agents):
            persona = PERSONAS[(asker.seed + number) % len(PERSONAS)]
            autonomy = AUTONOMY[(asker.seed // 7 + number // len(PERSONAS)) % len(AUTONOMY)]
            tools = "\n".join(f"- {tool['name']}: {tool['description']}" for tool in spec["tools"])
            text = (
                f"{spec['description']}\nIts rules:\n{spec['policy']}\nIts tools:\n{tools}\n\n"
                f"Write the system prompt of an agent at this desk, who is {persona}. {autonomy} Keep all rules. "
                "Choose the tools that it has, by name; leave out none that belong together. Answer with a JSON object "
                '{"system": ..., "tools": [...]}.'
            )
            asked = [{"role": "user", "content": text}]
            inputs = {"world": spec, "persona": persona, "autonomy": autonomy, "number": number}
            answer = await asker.ask_object("writer", "agent", asked, _SCHEMA, inputs=inputs)
            chosen = [name for name in names if name in answer["tools"]]
            if len(chosen) >= 2:
                agent = {"name": f"{spec['name']}/{number}", "system": answer["system"], "tools": chosen}
                made.append({**record, **agent})
        return Made(made)

    return work
