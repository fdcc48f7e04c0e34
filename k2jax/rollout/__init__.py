"""The rollout manager: many tasks as coroutines in worker processes, scheduled by a process that reads no token."""
