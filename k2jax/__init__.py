"""The open JAX research codebase for the Kimi K2 family of language models."""
