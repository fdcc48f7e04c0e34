"""Training over many devices: data, expert, pipeline, tensor and context parallelism, and sharded optimizer state.

Every array of a run has three forms. **Logical**: as the weight table declares it, ``[layers, ...]``; checkpoints and
other commands see nothing else. **Stored**: float32 on the mesh between steps, a pipeline's layers as ``[rounds,
stages, layers, ...]``, sharded over all axes of the mesh (ZeRO-1). **Compute**: the copy that a step works with, in
compute dtype, sharded only as the computation needs it: layers over ``stage``, experts over ``expert``, heads and
hidden width over ``tensor``, embedding and head over ``stage`` or, without stages, over ``tensor``.

The training objective comes from ``k2jax.losses``; nothing in this package knows which loss it computes.
"""
