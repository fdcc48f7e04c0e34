"""What reads the images of requests, for a model that has a tower and a vocabulary with the tokens of media."""

from __future__ import annotations

from pathlib import Path

from k2jax.config.schema import VisionConfig
from k2jax.data.images.download import DownloadLimits, download
from k2jax.errors import UserError
from k2jax.text.media import MEDIA_PAD
from k2jax.text.media_reading import MediaReader
from k2jax.text.tokenizer import Tokenizer


def media_reader(
    checkpoint: str | Path,
    vision: VisionConfig,
    tokenizer: Tokenizer,
    images: int = 64,
    megapixels: float = 50.0,
    files: DownloadLimits = DownloadLimits(),  # noqa: B008  (immutable)
) -> MediaReader | None:
    """Returns the reader of a model's images; None for a model or a vocabulary without them.

    Args:
        checkpoint: the model's, which says what images are reduced to.
        vision: the model's tower.
        tokenizer: its vocabulary.
        images: most images and frames of video of a request.
        megapixels: most pixels of all images of a request, before they are reduced [10^6 pixels].
        files: largest file, and the URLs that are downloaded; by default none.

    Raises:
        UserError: the extra ``vision`` is not installed, or the checkpoint's images are prepared in another way.
    """
    if not (vision.layers and tokenizer.has_special(MEDIA_PAD)):
        return None
    try:
        from k2jax.data.images.processor import ImageProcessor
        from k2jax.inference.media_reader import ImageReader, MediaLimits
    except ModuleNotFoundError as error:
        raise UserError(f'{error.name} is not installed: pip install -e ".[serve,vision]"') from None
    from k2jax.convert.image_limits import processor_limits

    processor = ImageProcessor(vision, limits=processor_limits(checkpoint, vision))
    limits = MediaLimits(images, megapixels, files.megabytes)
    return ImageReader(processor, tokenizer, limits, lambda url, name: download(url, files, name))
