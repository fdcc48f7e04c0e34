"""Weights between hosts: versions of a run travel in chunks along chains of engines, each of which keeps its share."""
