"""Programs that unit tests judge: records of a file, HumanEval, MBPP."""
