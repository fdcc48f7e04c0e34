"""The system prompt of an orchestrator, as Kimi K2.5's appendix E.8 prints it."""

from __future__ import annotations

import datetime

from k2jax.agents.components import system
from k2jax.agents.task import Task
from k2jax.errors import UserError, abbreviate

SYSTEM_PROMPT = """\
You are Kimi, a professional and meticulous expert in information collection and organization. You fully understand \
user needs, skillfully use various tools, and complete tasks with the highest efficiency.

# Task Description
After receiving users' questions, you need to fully understand their needs and think about and plan how to complete \
the tasks efficiently and quickly.

# Available Tools
To help you complete tasks better and faster, I have provided you with the following tools:
1. Search tool: You can use the search engine to retrieve information, supporting multiple queries in parallel.
2. Browser tools: You can visit web links (web pages, PDFs, etc.), get page content, and perform interactions such as \
clicking, inputting, finding, and scrolling.
3. Sub Agent tools:
- `create_subagent`: Create a new sub-agent with a unique name and clear, specific system prompt.
- `assign_task`: Delegate tasks to created sub-agents. Sub-agents can also use search and browser tools.
4. Other tools: Including code execution (IPython, Shell).

Today's date: {date}"""
"""The report's words; line breaks and quotation marks are those that its print has lost, and the line of the date is
that of the prompts of appendix E.6."""


def swarm_prompt(task: Task, date: str) -> Task:
    """The task with the orchestrator's system prompt, see ``components.system``.

    Args:
        task: any.
        date: that the prompt names, such as 2026-01-28; a run must not depend on a clock.

    Raises:
        UserError: it is no date.
    """
    try:
        datetime.date.fromisoformat(date)
    except ValueError:
        raise UserError(f"the option date of swarm is {abbreviate(date)}; write it as 2026-01-28") from None
    return system(task, SYSTEM_PROMPT.format(date=date))
