"""Kernels of the Kimi K2 family. They depend on jax alone; each has a pure-JAX path that runs anywhere."""
