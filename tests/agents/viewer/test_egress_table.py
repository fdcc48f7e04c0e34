"""The table of an episode's requests: whatever a file of trajectories holds in their place."""

import pytest

from k2jax.agents.egress.egress_log import EGRESS, EgressEntry, EgressLog
from k2jax.agents.viewer.egress_table import egress_table
from k2jax.agents.viewer.episode_page import episode
from k2jax.trajectory import Trajectory


def test_requests_are_shown_escaped_and_in_a_bounded_number():
    log, metadata = EgressLog(["a.example"]), {}
    for number in range(300):
        log.add(EgressEntry(at=number, method="GET", host="<b>", port=80, path=f"/{number}", status=200, received=5000))
    log.add_to(metadata)
    trajectory = Trajectory("t", "d", (0, 0, 0), metadata=metadata | {"other": 1})
    page = episode(trajectory, 1, lambda _: None)
    assert "300 kept, 0 dropped, 200 shown" in page and "&lt;b&gt;" in page and "<b>&lt;" not in page
    assert page.count("<td>5,000</td>") == 200 and "/199</td>" in page and "/200</td>" not in page
    assert page.count("&lt;b&gt;") == 200 and "other" in page  # not once more among the other metadata


@pytest.mark.parametrize(
    ("log", "rows"),
    [(None, 0), ([], 0), (1, 0), ({}, 0), ({"requests": 1}, 0), ({"requests": [None, 1, {"at": [], "path": {}}]}, 4)],
)
def test_what_is_no_log_is_no_table_and_no_error(log, rows):
    trajectory = Trajectory("t", "d", (0, 0, 0), metadata={EGRESS: log})
    assert egress_table(trajectory).count("<tr>") == rows
    assert episode(trajectory, 1, lambda _: None)
