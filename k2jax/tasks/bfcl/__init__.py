"""Calls of simulated APIs over several turns (BFCL v3)."""
