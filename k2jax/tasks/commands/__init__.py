"""Shell commands that change files, judged by a test command."""
