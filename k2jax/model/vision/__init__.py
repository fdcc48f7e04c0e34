"""MoonViT-3D and its projector (Kimi K2.5, section 4.2): features of images and video for the decoder.

Rows hold the patches of several images (``batch.PatchBatch``); shapes depend on the rows alone, never on the images.

| letter | dimension | letter | dimension |
| --- | --- | --- | --- |
| R | rows of patches | E | channels of one head |
| P | patches of a row | C | numbers of a patch's pixels, and its four merged patches' channels |
| N | groups of 2 x 2 patches of a row, P / 4 | Y, X | positions of the learned grid |
| D | width of the tower | | |
"""

from k2jax.model.vision.specs import multimodal_specs, vision_specs
from k2jax.model.vision.tower import VisionOutput, vision_features

__all__ = ["VisionOutput", "multimodal_specs", "vision_features", "vision_specs"]
