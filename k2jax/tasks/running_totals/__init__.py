"""Dialogues of several turns in which a user adds numbers."""
