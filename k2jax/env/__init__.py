"""Commands about environments: ``check`` with an oracle, ``demonstrate`` writes dialogues, ``serve`` to others."""
