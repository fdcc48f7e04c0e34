"""Reinforcement learning: episodes by the engine on the training's own devices, rewards, updates, weight sync.

Reading order: ``loop`` is the whole of it on a screen; ``setup`` opens what it uses. ``sampler`` is what the loop asks
of one, ``lockstep`` the one that repeats bit for bit, over ``episodes``; ``groups`` makes rewards and samples of them,
``advantages`` centres them. ``updates`` trains on rows of ``packing``, ``policy`` brings weights to the engine through
``sync``. ``methods`` has the algorithms, ``workers`` the sampler that waits for no slow tool, ``followers`` runs of
several processes. Beside these: ``inputs``, ``schedules``, ``evaluation``, ``iteration_metrics``, ``failures``,
``retention`` (of verdicts), ``report``, ``event_loop``.
"""
