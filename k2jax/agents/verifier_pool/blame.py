"""Who may be to blame for a missing verdict of a verifier that judges every answer."""

from __future__ import annotations

ANSWER = "answer"
"""The answer: the verifier raised, or used up its processor time. A machine that is busy does neither."""
UNCLEAR = "unclear"
"""The answer, or a machine that was short of memory: the verifier's process died, or got no memory."""
BUSY = "busy"
"""The machine: the verifier's process got no processor."""
