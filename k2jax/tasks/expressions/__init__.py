"""Programs that print the value of an expression."""
