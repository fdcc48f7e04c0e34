"""Tasks that reasoning-gym generates and scores."""
