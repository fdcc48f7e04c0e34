"""White-box scaffolds, which turn tasks into calls of a model.

In reading order: ``chat`` (answers and observations in turn), ``context`` (what becomes of a long history),
``scripted`` (episodes that a program plays), ``check_place`` and ``prompt_lengths`` (tasks that can be run, before a
run begins).

A scaffold turns a task into calls of a model; one is made for every episode. It has a coroutine ``run(rollout,
environment, sampling)``, which runs the episode from where its trajectory ends and sets the trajectory's status; the
environment is not reset yet. It is called again after a failure: what the trajectory records has happened, and the
environment is rebuilt by replay. It raises InfrastructureError where the environment failed, and UserError where the
task needs what is not there. One whose ``needs_this_machine`` is true runs in no sandbox of another machine, see
``check_place``. The scaffold of agents in programs of their own is in ``gateway``.
"""
