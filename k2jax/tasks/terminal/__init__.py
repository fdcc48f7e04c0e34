"""Tasks in a shell, whose result a test program judges."""
