"""Dialogues with a simulated user at a service desk (tau2-bench)."""
