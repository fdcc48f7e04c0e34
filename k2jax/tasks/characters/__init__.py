"""Arithmetic and sorting with answers of a few characters."""
