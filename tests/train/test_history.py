"""What changes between two starts of a run is kept with its checkpoints."""

import json

from k2jax.config import replace_keys
from k2jax.train.history import changes_of, settings
from tests.train.tiny import tiny


def saved(config, changes=()):
    """Meta as it comes back from a checkpoint."""
    return json.loads(json.dumps({"settings": settings(config), "changes": [list(change) for change in changes]}))


def test_every_change_is_listed_with_the_step_up_to_which_it_was_otherwise(tmp_path):
    first = tiny(tmp_path)
    assert changes_of({}, 0, first) == ([], [])
    assert changes_of(saved(first), 8, first) == ([], [])
    second = replace_keys(first, {"optimizer.learning_rate": 1e-4, "checkpoint.every": 5, "train.steps": 40})
    known, new = changes_of(saved(first), 8, second)
    assert not known
    assert [tuple(change) for change in new] == [
        (8, "optimizer.learning_rate", 5e-3, 1e-4),
        (8, "train.steps", 12, 40),
    ]
    assert str(new[0]) == "config.optimizer.learning_rate was 0.005 up to step 8 and is 0.0001 now"
    third = replace_keys(second, {"optimizer.learning_rate": 1e-5})
    known, newer = changes_of(saved(second, new), 20, third)
    assert known == new and [tuple(change) for change in newer] == [(20, "optimizer.learning_rate", 1e-4, 1e-5)]


def test_a_checkpoint_of_an_older_version_knows_of_none(tmp_path):
    assert changes_of({"config": {}}, 8, tiny(tmp_path)) == ([], [])
