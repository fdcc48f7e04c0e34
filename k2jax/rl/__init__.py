"""Reinforcement learning: rollouts by the engine on the training's own devices, rewards, updates, weight sync."""
