"""Wide questions: the numbers that several keys of a store lead to, one by one or by sub-agents."""
