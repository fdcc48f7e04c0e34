"""Augmentation of pictures and of what is said about them: flips, turns, a window and light.

One transformation moves pixels and coordinates alike: to transform a sample and then read its label is to read the
label and then transform it. Coordinates are in thousandths of a picture's sides, x before y. Words are exchanged in
texts alone that are marked for it; other texts are never rewritten, and beside one that may say where something is,
nothing moves.
"""

from __future__ import annotations

from collections.abc import Collection
import dataclasses
import re

import numpy as np
from PIL import Image, ImageEnhance

from k2jax.drawings.labels import THOUSAND

OPERATIONS = ("flip", "turn", "crop", "shrink", "light")
"""What a record may permit: mirroring, turns by right angles, a smaller or a larger window, brightness and contrast."""
IN_PLACE = ("light",)
"""Those that leave everything where it is."""
_WINDOW = (0.6, 0.95)  # sides of a cropping window, over the picture's; a shrinking one has their inverse
_LIGHT = (0.75, 1.25)
_MIRRORED = {"left": "right", "leftmost": "rightmost", "leftward": "rightward"}
_TURNED = {"top": "bottom", "above": "below", "upper": "lower", "up": "down", "topmost": "bottommost"}
_OPPOSITE = {
    "x": {**_MIRRORED, **{b: a for a, b in _MIRRORED.items()}},
    "y": {**_TURNED, **{b: a for a, b in _TURNED.items()}},
}
_AWAY = re.compile(
    r"\b(?:left(?!over)\w*|right(?!eous|ful)\w*|tops?|topmost|top(?:left|right)|bottom\w*|up|up(?:per|ward|right|side|most)\w*"
    r"|down|downward\w*|above|below|beneath|under|underneath|over|(?:high|low)(?:er|est)|\w*clockwise"
    r"|(?:north|south|east|west)\w*|(?:horizontal|vertical|diagonal)\w*|columns?|rows?|o'?clock"
    r"|(?:mirror|rotat|flip|revers|tilt)\w*"
    r"|links|rechts|oben|unten|gauche|droite|haut|bas|izquierda|derecha|arriba|abajo|sinistra|destra|esquerda|direita)\b"
    r"|[(\[{<]\s*-?[\d.]+\s*[,;]\s*-?[\d.]|\b[xy]\d?\s*[=:]\s*[\"']?-?\d",
    re.IGNORECASE,
)
"""Words for sides and ways, some of other languages, and coordinates."""
_WORDS = {axis: re.compile(rf"\b({'|'.join(words)})\b", re.IGNORECASE) for axis, words in _OPPOSITE.items()}


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """One transformation, in this order.

    Attributes:
        flip: whether left and right are exchanged.
        turns: right angles by which the picture is then turned to the left; even unless it is square.
        left: left edge of the window, over the width.
        top: top edge of the window, over the height.
        size: sides of the window over those of the picture; what lies beyond the picture is grey.
        brightness: factor.
        contrast: factor.
    """

    flip: bool = False
    turns: int = 0
    _: dataclasses.KW_ONLY
    left: float = 0.0
    top: float = 0.0
    size: float = 1.0
    brightness: float = 1.0
    contrast: float = 1.0

    def picture(self, image: Image.Image) -> Image.Image:
        """The transformed picture, of the same size."""
        if self.flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        for _ in range(self.turns):
            image = image.transpose(Image.Transpose.ROTATE_90)
        if self.size != 1.0:
            width, height = image.size
            window = (self.size, 0, self.left * width, 0, self.size, self.top * height)
            grey = (128, 128, 128)
            image = image.transform(
                image.size, Image.Transform.AFFINE, window, Image.Resampling.BICUBIC, fillcolor=grey
            )
        if self.brightness != 1.0:
            image = ImageEnhance.Brightness(image).enhance(self.brightness)
        return ImageEnhance.Contrast(image).enhance(self.contrast) if self.contrast != 1.0 else image

    def points(self, points: np.ndarray) -> np.ndarray:
        """Transformed points.

        Args:
            points: ``[..., 2]``, x and y in thousandths.

        Returns:
            int ``[..., 2]``, rounded; outside 0 to 1000 for points that are cut off.
        """
        return np.rint(self._moved(points)).astype(int)

    def boxes(self, boxes: np.ndarray) -> np.ndarray:
        """Transformed boxes ``[..., 4]``: left, top, right and bottom, in thousandths, rounded."""
        corners = self.points(np.asarray(boxes).reshape(*np.shape(boxes)[:-1], 2, 2))
        return np.concatenate([corners.min(-2), corners.max(-2)], -1)

    def text(self, text: str) -> str:
        """A marked text whose words for sides are exchanged as the sides are; quarter turns are not for such texts."""
        half = self.turns % 4 == 2
        if self.flip != half:
            text = _exchanged(text, "x")
        return _exchanged(text, "y") if half else text

    def _moved(self, points: np.ndarray) -> np.ndarray:
        x, y = np.moveaxis(np.asarray(points, float) / THOUSAND, -1, 0)
        x = 1 - x if self.flip else x
        for _ in range(self.turns):
            x, y = y, 1 - x
        return np.stack([(x - self.left) / self.size, (y - self.top) / self.size], -1) * THOUSAND


def has_direction(text: str) -> bool:
    """Whether a text may say where something is in a picture: by a word, by coordinates, or beyond ASCII's letters.

    It errs on the side of yes, which costs an augmentation and no truth.
    """
    return bool(_AWAY.search(text)) or any(letter.isalpha() and not letter.isascii() for letter in text)


def is_exchangeable(text: str) -> bool:
    """Whether ``Augmentation.text`` moves all that a text says about sides."""
    for words in _WORDS.values():
        text = words.sub("", text)
    return not has_direction(text)


def draw_augmentation(
    rng: np.random.Generator, permitted: Collection[str], *, square: bool, directed: bool, points: np.ndarray
) -> Augmentation:
    """Draws a transformation that a record permits and that cuts off no labelled point.

    Args:
        rng: source of randomness.
        permitted: members of ``OPERATIONS``.
        square: whether all pictures are square, so that they may be turned by one right angle.
        directed: whether marked texts have words for sides, which no quarter turn leaves meaningful.
        points: ``[n, 2]``, all labelled points in thousandths.
    """
    flip = "flip" in permitted and bool(rng.integers(2))
    turns = int(rng.integers(4)) if "turn" in permitted else 0
    if turns % 2 and (not square or directed):
        turns -= 1
    turned = Augmentation(flip, turns)
    windows = [name for name in ("crop", "shrink") if name in permitted]
    left = top = 0.0
    size = 1.0
    if windows:
        size = float(rng.uniform(*_WINDOW))
        if rng.choice(windows) == "shrink":
            size = 1 / size
        left, top = (float(edge) for edge in rng.uniform(min(0, 1 - size), max(0, 1 - size), 2))
    light = rng.uniform(*_LIGHT, 2) if "light" in permitted else (1.0, 1.0)
    light = {"brightness": float(light[0]), "contrast": float(light[1])}
    drawn = dataclasses.replace(turned, left=left, top=top, size=size, **light)
    moved = drawn._moved(np.reshape(points, (-1, 2)))
    inside = ((moved >= 0) & (moved <= THOUSAND)).all()
    return drawn if inside else dataclasses.replace(drawn, left=0.0, top=0.0, size=1.0)


def _exchanged(text: str, axis: str) -> str:
    """A text with the words for the two sides of an axis exchanged, in the case of the words they replace."""

    def opposite(match: re.Match) -> str:
        word = match[0]
        other = _OPPOSITE[axis][word.lower()]
        return other.upper() if word.isupper() and len(word) > 1 else other.capitalize() if word[0].isupper() else other

    return _WORDS[axis].sub(opposite, text)
