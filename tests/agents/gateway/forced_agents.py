"""A script that mends the repository through whatever shell an agent offers, and then ends as the agent expects."""

import json
import os
import re

from tests.agents.gateway.repository import MEND
from tests.agents.gateway.scripted import TOKENIZER, reply_ids, special

FOLDER = os.environ.get("K2JAX_AGENTS", "")
SHELLS = {"bash", "shell", "shell_command", "exec_command", "execute_command", "run_commands", "exec"}
END = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"  # of mini-swe-agent
TOLD = "Calling tools:"  # smolagents tells its calls again as text
_FUNCTION = re.compile(r"^type (\w+) = \(_: \{\n(.*?)^\}\) => any;", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^  (\w+)(\??): (.*?),?$", re.MULTILINE)


def declared_tools(prompt):
    """The functions that a prompt declares: of each its fields as (name, whether it may be left out, type)."""
    text = TOKENIZER.decode(prompt)
    if not text.startswith("tool_declare"):
        return {}
    declared = text[: text.index("\n}\n")]
    return {name: _FIELD.findall(fields) for name, fields in _FUNCTION.findall(declared)}


def arguments_for(fields, command):
    """Arguments of these fields, with the command in the place of a command."""
    arguments = {}
    for name, optional, kind in fields:
        if name in ("command", "cmd", "commands"):
            arguments[name] = command if "Array" not in kind else [command]
        elif not optional:
            arguments[name] = {"string": "mends it", "boolean": False}.get(kind, 1)
    return json.dumps(arguments)


def mend(prompt, sampling, command=MEND):
    """The edit, or another command, in the first turn, the agent's end in the second, a title without tools."""
    tools, text = declared_tools(prompt), TOKENIZER.decode(prompt)
    shell = next((name for name in tools if name.lower() in SHELLS), None)
    if shell is None:
        return reply_ids("", "Ranges mended")
    if not prompt.count(special("<|tool_calls_section_begin|>")) + text.count(TOLD):
        call = f"functions.{shell}:0", arguments_for(tools[shell], command)
        return reply_ids("Sort them first.", "I mend it.", [call])
    if "final_answer" in tools:
        return reply_ids("", "", [("functions.final_answer:1", '{"answer": "Done."}')])
    if END in text:
        return reply_ids("", "", [(f"functions.{shell}:1", arguments_for(tools[shell], END))])
    return reply_ids("It is mended.", "Done.")
