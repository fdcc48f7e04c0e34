"""Conversion of Hugging Face folders, quantised or not, to checkpoints and back."""
