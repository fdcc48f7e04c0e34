"""Instructions whose constraints a program checks."""
