"""The sampler that does not wait: episodes run on in a window while the engine steps whenever it has work.

In reading order: ``worker_sampler`` (what the loop asks), ``rollouts`` (the window at work: who begins, who has ended),
``window`` (its state machine, without clocks), ``worker_episodes`` (where they run: here or in worker processes),
``group_log`` (complete groups on disk), ``window_metrics``, ``tracing`` (a picture of one iteration); ``opening`` puts
them together.
"""
