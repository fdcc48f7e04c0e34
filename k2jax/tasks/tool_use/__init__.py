"""TODO k2jax/tasks/tool_use."""
