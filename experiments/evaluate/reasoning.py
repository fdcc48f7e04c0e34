"""A panel of reasoning-gym: ten generators with exact answers, twelve puzzles of each, drawn by a fixed seed.

Expected: the oracle scores 1 and the null policy 0. It needs the extra env, and nothing from a network.

    python -m k2jax.evaluate reasoning --model=oracle --workdir=runs/reasoning-oracle
"""

from k2jax.evaluate.suite import suite


def get_config():
    """The suite."""
    return suite(
        dataset="reasoning_gym",
        options=(
            "generators=basic_arithmetic+chain_sum+letter_counting+leg_counting+gcd+lcm+spell_backward+word_sorting"
            "+number_sorting+caesar_cipher",
            "count=120",
            "seed=1",
        ),
        max_tokens=1024,
    )
