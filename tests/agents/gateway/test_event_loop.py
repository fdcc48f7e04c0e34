"""Work that grows with a history leaves the gateway's event loop free for others."""

import dataclasses
import threading

from k2jax.agents.gateway import app, session
from k2jax.agents.gateway.history import RecordedHistory
from tests.agents.gateway.scripted import CARD, Bench, say, spec

LONG = "a line of the output of a command\n" * 600


def test_long_histories_are_copied_encoded_and_written_down_in_other_threads(tmp_path, monkeypatch):
    threads = {}

    def note(owner, name):
        function = getattr(owner, name)

        def noted(*arguments):
            threads.setdefault(name, []).append(threading.current_thread() is threading.main_thread())
            return function(*arguments)

        monkeypatch.setattr(owner, name, noted)

    note(RecordedHistory, "resumed")
    note(app, "encode_history")
    note(app, "conversation_keys")
    note(session, "encoded")
    bench = Bench(folder=tmp_path, card=dataclasses.replace(CARD, max_length=1 << 15))

    async def talk(http):
        access, items = bench.gateway.open(spec()), [("user", LONG)]
        for _ in range(2):
            items += [await say(http, access, "chat/completions", items), ("user", "go on")]
        return await bench.gateway.close(access.rollout)

    (trajectory,) = bench.run(talk)
    assert len(trajectory.nodes[1].tokens) > session.AT_ONCE
    off_loop = {name: [False, False] for name in ("resumed", "encode_history", "conversation_keys")}
    assert threads == off_loop | {"encoded": [False, True]}, "a short record takes no thread"
