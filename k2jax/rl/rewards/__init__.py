"""From verdicts on responses to rewards within a budget of tokens, and from these to advantages."""
