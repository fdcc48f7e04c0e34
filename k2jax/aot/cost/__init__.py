"""FLOPs, bytes, memory and time of a program or of a layout, by arithmetic."""
