"""A simulated API for tests."""


class Lamp:
    """A lamp with a state."""

    def __init__(self):
        self.lit, self.level = False, 0

    def _load_scenario(self, scenario):
        self.lit, self.level = scenario.get("lit", False), scenario.get("level", 1)

    def switch(self, on: bool) -> dict[str, bool]:
        """Switches the lamp.

        Args:
            on: or off.
        """
        self.lit = on
        return {"lit": on}

    def dim(self, level: int) -> str:
        """Sets the level.

        Args:
            level: from 1 to 9.
        """
        if not 1 <= level <= 9:
            raise ValueError("no such level")
        self.level = level
        return "done"

    def look(self) -> dict[str, int]:
        """Tells the level."""
        return {"level": self.level}
