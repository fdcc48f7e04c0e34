"""Reads compiled programs: instructions, collectives and the devices that they connect."""
