"""What the requests of black-box coding agents look like where no recording shows it: lists, compaction, billing.

Every agent is a coroutine that gets ``send(path, body)`` and makes the requests of a task with one tool call.
"""

import json

SHELL = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
RESULT = "hello.txt is written"


def function_tool(name="bash"):
    return {"type": "function", "function": {"name": name, "description": "Runs a command.", "parameters": SHELL}}


async def chat_agent(send, messages, *, result=lambda call: {}, requests=2, **fields):
    """An agent that speaks chat completions: it echoes the answer and appends the results of its calls."""
    for _ in range(requests):
        body = {"model": "scripted", "messages": messages, "tools": [function_tool()], **fields}
        message = (await send("chat/completions", body))["choices"][0]["message"]
        messages = [*messages, parsed_again(message)]
        for call in message.get("tool_calls", ()):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": RESULT, **result(call)})


def parsed_again(message):
    """An echo whose arguments were parsed and written again, with what JavaScript makes of them."""
    message = json.loads(json.dumps(message))
    for call in message.get("tool_calls", ()):
        arguments = json.loads(call["function"]["arguments"], parse_float=_number)
        call["function"]["arguments"] = json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)
    return message


def _number(text):
    """A number as JavaScript writes it again: 5.0 is 5."""
    return int(float(text)) if float(text).is_integer() else float(text)


async def qwen(send):
    """Content is a list everywhere, that of results too."""
    task = {"role": "user", "content": [{"type": "text", "text": "Reminders. "}, {"type": "text", "text": "Write."}]}
    system = {"role": "system", "content": [{"type": "text", "text": "You are Qwen Code."}]}
    await chat_agent(send, [system, task], result=lambda call: {"content": [{"type": "text", "text": RESULT}]})


async def cline(send):
    messages = [{"role": "system", "content": "You are Cline."}, {"role": "user", "content": "Write"}]
    await chat_agent(send, messages, requests=3, temperature=0)


async def claude(send):
    """Its system prompt begins with a changing billing line, and a message of the system is list first, then text."""
    note = "Agents, skills, the date."
    history = [{"role": "user", "content": [{"type": "text", "text": "Write hello.txt"}]}]
    tools = [{"name": "Bash", "description": "x", "input_schema": SHELL, "cache_control": {"type": "ephemeral"}}]
    for number in range(3):
        middle = [{"type": "text", "text": note, "cache_control": {"type": "ephemeral"}}] if number == 0 else note
        billing = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.{number};"}
        system = [billing, {"type": "text", "text": "You are Claude Code."}, {"type": "text", "text": "CWD: /repo"}]
        answer = await send("messages?beta=true", {
            "model": "scripted", "max_tokens": 32000, "system": system, "tools": tools,
            "messages": [history[0], {"role": "system", "content": middle}, *history[1:]],
            "thinking": {"type": "adaptive"}, "metadata": {"user_id": "{}"}, "temperature": 1,
            "context_management": {"edits": []}, "output_config": {"effort": "high"},
        })  # fmt: skip
        history = [*history, {"role": "assistant", "content": answer["content"]}]
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": [{"type": "text", "text": RESULT}],
             "is_error": False}
            for block in answer["content"]
            if block["type"] == "tool_use"
        ]  # fmt: skip
        history.append({"role": "user", "content": results or "Go on"})


async def compacting(send):
    """opencode at its limit: a summary without tools, then a new history that begins with the summary."""
    system = {"role": "system", "content": "You are opencode."}
    await chat_agent(send, [system, {"role": "user", "content": "Write hello.txt"}])
    told = {"role": "user", "content": "Summarise: Write hello.txt …"}
    answer = await send("chat/completions", {"model": "s", "messages": [system, told]})
    summary = {"role": "assistant", "content": answer["choices"][0]["message"]["content"] or "It wrote hello.txt."}
    history = [system, {"role": "user", "content": "What did we do?"}, summary, {"role": "user", "content": "Continue"}]
    await chat_agent(send, history)


# Of each agent: how its requests go on, in the order of its requests.
AGENTS = {
    qwen: ["start", "extend"],
    cline: ["start", "extend", "extend"],
    claude: ["start", "extend", "extend"],
    compacting: ["start", "extend", "side call", "branch", "extend"],
}
