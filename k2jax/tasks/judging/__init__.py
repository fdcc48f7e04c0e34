"""Dialogues in which a critic judges pairs of answers whose better one is known."""
