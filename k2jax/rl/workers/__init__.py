"""The sampler that does not wait: episodes run on in a window while the engine steps whenever it has work.

In reading order: ``sampler`` (what the loop asks), ``rollouts`` (the window at work: who begins, who has ended),
``window`` (its state machine, without clocks), ``episodes`` (where they run: here or in worker processes),
``group_log`` (complete groups on disk), ``metrics``, ``tracing`` (one iteration as a picture).
"""
