"""What can be known of a program before it runs: compiled for an absent TPU, counted, and set against a chip."""
