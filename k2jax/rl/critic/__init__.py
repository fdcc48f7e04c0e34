"""The critic in the loop: it judges responses in pairs, and trains where the better one is known."""
