"""What a sandbox has asked of other machines, allowed or refused, as JSON values of its episode's trajectory."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
import dataclasses
from typing import Any

EGRESS = "egress"
"""Key of a trajectory's metadata: ``hosts``, ``requests``, ``dropped`` (requests that are not kept) and ``sandboxes``
(an episode that begins anew has several); see ``EgressEntry``."""
MOST_ENTRIES = 1000
"""Requests that are kept of an episode."""
_LONGEST_TEXT = 200


@dataclasses.dataclass(kw_only=True)
class EgressEntry:
    """One request. No header and no content of it is kept; of its path, with its query, the beginning.

    Attributes:
        at: when it came, since the sandbox was opened [s].
        method: empty where it could not be read, as with what follows.
        host: as it was asked for.
        port: of it.
        path: of a request in the clear.
        status: that the sandbox was answered with; 0 where it went before.
        reason: why it was refused, or ended early.
        sent: bytes to the host.
        received: bytes from it.
        seconds: until its end.
    """

    at: float
    method: str = ""
    host: str = ""
    port: int = 0
    path: str = ""
    status: int = 0
    reason: str = ""
    sent: int = 0
    received: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The entry as it is kept."""
        values = dataclasses.asdict(self)
        texts = {name: value[:_LONGEST_TEXT] for name, value in values.items() if isinstance(value, str)}
        return values | texts | {"at": round(self.at, 3), "seconds": round(self.seconds, 3)}


class EgressLog:
    """The requests of one sandbox.

    Args:
        hosts: that its task has asked for.
    """

    def __init__(self, hosts: Sequence[str]):
        self._hosts = list(hosts)
        self._entries: list[dict[str, Any]] = []
        self._dropped = 0

    def add(self, entry: EgressEntry) -> None:
        """Keeps a request that has ended, or counts it where there are many."""
        if len(self._entries) < MOST_ENTRIES:
            self._entries.append(entry.to_json())
        else:
            self._dropped += 1

    def add_to(self, metadata: MutableMapping[str, Any]) -> None:
        """Adds everything to what a trajectory's metadata have of earlier sandboxes of the episode."""
        known = metadata.get(EGRESS, {"requests": [], "dropped": 0, "sandboxes": 0})
        number, room = known["sandboxes"], MOST_ENTRIES - len(known["requests"])
        added = [entry | {"sandbox": number} for entry in self._entries[:room]]
        metadata[EGRESS] = {
            "hosts": self._hosts,
            "requests": [*known["requests"], *added],
            "dropped": known["dropped"] + self._dropped + len(self._entries) - len(added),
            "sandboxes": number + 1,
        }
