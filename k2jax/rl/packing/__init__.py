"""From trajectories to rows of a batch: the paths that train, cut into fragments, placed in rows, and packed anew."""
