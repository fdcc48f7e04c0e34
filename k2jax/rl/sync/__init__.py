"""The switch between training and rollouts: weights to the engine or into a store, the training state to the host."""
