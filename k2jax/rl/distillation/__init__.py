"""On-policy distillation: which teacher judges which class of tasks, and what it says of the tokens of the student."""
