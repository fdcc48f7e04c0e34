"""Environments: files, repositories, tools, other processes."""
