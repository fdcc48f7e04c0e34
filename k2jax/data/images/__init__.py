"""Images and clips on the host: from files to patches, rows of patches and tokens. NumPy and Pillow, no jax program."""
