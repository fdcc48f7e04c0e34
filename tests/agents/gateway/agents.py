"""What the requests of black-box coding agents look like: each agent's own fields, roles, echoes and side calls.

Every agent is a coroutine that gets ``send(path, body)`` and makes the requests of a task with one tool call.
"""

import json

SHELL = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
RESULT = "hello.txt is written"


def function_tool(name="bash"):
    return {"type": "function", "function": {"name": name, "description": "Runs a command.", "parameters": SHELL}}


async def chat_agent(send, messages, *, echo, result=lambda call: {}, requests=2, **fields):
    """An agent that speaks chat completions: it appends ``echo(message)`` and the results of the calls."""
    for _ in range(requests):
        body = {"model": "scripted", "messages": messages, "tools": [function_tool()], **fields}
        message = (await send("chat/completions", body))["choices"][0]["message"]
        messages = [*messages, echo(message)]
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


async def mini(send):
    system, task = {"role": "system", "content": "You solve tasks."}, {"role": "user", "content": "Write hello.txt"}

    def echo(message):
        return {**message, "provider_specific_fields": {"refusal": None}, "function_call": None}

    returned = json.dumps({"returncode": 0, "output": RESULT})
    await chat_agent(
        send, [system, task], echo=echo, result=lambda call: {"content": returned}, parallel_tool_calls=True
    )


async def pi(send):
    task = {"role": "user", "content": [{"type": "text", "text": "Write hello.txt"}]}
    messages = [{"role": "developer", "content": "You are pi. /repo"}, task]
    fields = {"store": False, "max_completion_tokens": 8192, "reasoning_effort": "medium"}
    await chat_agent(send, messages, echo=parsed_again, **fields)


async def opencode(send):
    """Its title call has no tools, runs beside the first turn and may come before it."""
    task = {"role": "user", "content": '"Write hello.txt"'}
    await send("chat/completions", {
        "model": "small", "messages": [{"role": "system", "content": "You write titles."}, task], "temperature": 0.5,
    })  # fmt: skip
    await chat_agent(send, [{"role": "system", "content": "You are opencode."}, task], echo=parsed_again,
                     tool_choice="auto", max_tokens=32000)  # fmt: skip


async def qwen(send):
    """Content is a list everywhere, that of results too."""
    task = {"role": "user", "content": [{"type": "text", "text": "Reminders. "}, {"type": "text", "text": "Write."}]}
    system = {"role": "system", "content": [{"type": "text", "text": "You are Qwen Code."}]}
    await chat_agent(send, [system, task], echo=parsed_again,
                     result=lambda call: {"content": [{"type": "text", "text": RESULT}]})  # fmt: skip


async def cline(send):
    await chat_agent(send, [{"role": "system", "content": "You are Cline."}, {"role": "user", "content": "Write"}],
                     echo=parsed_again, requests=3, temperature=0)  # fmt: skip


async def openclaw(send):
    """A message about its state is the last one of every request, so that the tail moves."""
    state = {"role": "user", "content": "OPENCLAW_INTERNAL_CONTEXT"}
    messages = [{"role": "system", "content": "You are OpenClaw."}, {"role": "user", "content": "[11:07] Write"}]
    body = {"model": "scripted", "messages": [*messages, state], "tools": [function_tool()]}
    message = (await send("chat/completions", body))["choices"][0]["message"]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": RESULT} for call in message["tool_calls"]]
    await send("chat/completions", body | {"messages": [*messages, parsed_again(message), *results, state]})


async def smolagents(send):
    """Calls are told again as text, and the tool choice is ``required``."""
    messages = [{"role": "system", "content": "You act."}, {"role": "user", "content": "Write"}]
    fields = {"model": "scripted", "tools": [function_tool()], "tool_choice": "required", "stop": ["Observation:"]}
    message = (await send("chat/completions", {"messages": messages, **fields}))["choices"][0]["message"]
    told = {"role": "assistant", "content": f"Calling tools: {message['tool_calls']!r}"}
    observed = {"role": "user", "content": f"Observation:\n{RESULT}"}
    await send("chat/completions", {"messages": [*messages, told, observed], **fields})


async def codex(send):
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "You are Codex."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<cwd>/repo</cwd>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Write hello.txt"}]},
    ]
    tools = [
        {"type": "function", "name": "shell", "description": "x", "strict": False, "parameters": SHELL},
        {"type": "web_search", "external_web_access": False},
        {"type": "namespace", "name": "agents", "tools": []},
    ]
    for _ in range(3):
        response = await send("responses", {
            "model": "scripted", "instructions": "", "input": items, "tools": tools, "tool_choice": "auto",
            "parallel_tool_calls": False, "reasoning": {"effort": "medium", "summary": "auto"}, "store": False,
            "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0199", "text": {"verbosity": "low"},
            "client_metadata": {"x-codex-installation-id": "1"},
        })  # fmt: skip
        for item in response["output"]:
            item = {name: value for name, value in item.items() if name != "status"}
            items = [*items, item]
            if item["type"] == "function_call":
                output = f"Chunk ID: 1\nWall time: 0.1\n{RESULT}"
                items.append({"type": "function_call_output", "call_id": item["call_id"], "output": output})


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
    await chat_agent(send, [system, {"role": "user", "content": "Write hello.txt"}], echo=parsed_again)
    told = {"role": "user", "content": "Summarise: Write hello.txt …"}
    answer = await send("chat/completions", {"model": "s", "messages": [system, told]})
    summary = {"role": "assistant", "content": answer["choices"][0]["message"]["content"] or "It wrote hello.txt."}
    history = [system, {"role": "user", "content": "What did we do?"}, summary, {"role": "user", "content": "Continue"}]
    await chat_agent(send, history, echo=parsed_again)


# Of each agent: how its requests go on, in the order of its requests.
AGENTS = {
    mini: ["start", "extend"],
    pi: ["start", "extend"],
    opencode: ["side call", "start", "extend"],
    qwen: ["start", "extend"],
    cline: ["start", "extend", "extend"],
    openclaw: ["start", "branch"],
    smolagents: ["start", "branch"],
    codex: ["start", "extend", "extend"],
    claude: ["start", "extend", "extend"],
    compacting: ["start", "extend", "side call", "branch", "extend"],
}
