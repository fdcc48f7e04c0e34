"""The rollout manager: episodes of many tasks in worker processes, with leases, a journal and resumption."""
