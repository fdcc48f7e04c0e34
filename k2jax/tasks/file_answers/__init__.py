"""Files that must be written with given content."""
