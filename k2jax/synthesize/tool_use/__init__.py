"""Tool use (Kimi K2, section 3.1.1): tools, agents, tasks with rubrics, dialogues in simulated worlds, and a judge.

In reading order: ``pipeline`` (the stages, some of which are of ``synthesize.tools``), ``agent_prompts``,
``world_tasks``, ``dialogues``, ``trajectory_judge``, ``exports``, and ``programs``, which play the models where no
server is named.
"""
