"""Training over many devices: data, expert, pipeline, tensor and context parallelism, and sharded optimizer state.

Every array of a run has three forms. **Logical**: as the weight table declares it, ``[layers, ...]``; checkpoints and
other commands see nothing else. **At rest**: float32, on the mesh, a pipeline's layers as ``[rounds, stages, layers,
...]``, spread over all axes of the mesh (ZeRO-1). **Compute**: the copy a step works with, in compute dtype, spread
only as the computation wants it: layers over ``stage``, experts over ``expert``, heads and hidden width over
``tensor``, embedding and head over ``stage`` or, without stages, over ``tensor``.
"""
