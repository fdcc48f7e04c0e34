"""Metadata of trajectories: comparisons come back from JSON, under the keys that stored trajectories have."""

import json

from k2jax.trajectory.annotations import COMPARISONS, PairVerdict, comparisons, set_comparisons
from tests.trajectory.trees import chat


def test_comparisons_come_back_from_their_stored_keys():
    verdict = PairVerdict(1, ("first", "second"), ("one", "two"), ("honesty",), "")
    trajectory = chat()
    set_comparisons(trajectory, [verdict])
    stored = json.dumps(trajectory.metadata[COMPARISONS])
    assert list(json.loads(stored)[0]) == ["other", "choices", "said", "rubrics", "error"]
    trajectory.metadata[COMPARISONS] = json.loads(stored)
    assert comparisons(trajectory) == [verdict]
