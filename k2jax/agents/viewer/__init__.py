"""HTML pages of trajectories: the page of an episode, the picture of its token tree, and curves."""
