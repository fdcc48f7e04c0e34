"""Tables and JSON of what was compiled and estimated."""
