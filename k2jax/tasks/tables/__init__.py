"""Questions about tables of text."""
