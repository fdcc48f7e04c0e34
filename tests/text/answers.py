"""What holds of the events of every answer, whatever its format."""

from k2jax.text.answers import CallArguments, CallEnd, CallStart, Content, Finished, Markup, Reasoning


def joined(events):
    """Events with neighbouring pieces of one thing made one."""
    out = []
    for event in events:
        same = out and type(event) is type(out[-1]) and isinstance(event, Content | Reasoning | CallArguments | Markup)
        if same and vars(event) | {"raw": ""} == vars(out[-1]) | {"raw": ""}:
            out[-1] = type(event)(**vars(event) | {"raw": out[-1].raw + event.raw})
        else:
            out.append(event)
    return out


def check(parser, events, text):
    """Nothing is lost, and the events tell a whole story."""
    assert "".join(event.raw for event in events) == text
    assert [type(event) for event in events].count(Finished) == 1
    after = events[[type(event) for event in events].index(Finished) + 1 :]
    assert all(isinstance(event, Markup) for event in after)
    message = parser.message
    assert message["content"] == "".join(event.raw for event in events if isinstance(event, Content))
    assert message.get("reasoning_content", "") == "".join(e.raw for e in events if isinstance(e, Reasoning))
    calls = message.get("tool_calls", [])
    for kind in (CallStart, CallEnd):
        assert [event.index for event in events if isinstance(event, kind)] == list(range(len(calls)))
    for i, call in enumerate(calls):
        pieces = [event.raw for event in events if isinstance(event, CallArguments) and event.index == i]
        assert call["function"]["arguments"] == "".join(pieces)
    (finished,) = (event for event in events if isinstance(event, Finished))
    assert finished.reason == ("tool_calls" if calls else "stop")
