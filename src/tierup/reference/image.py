"""Encoded pictures to pixels, through Pillow, which is an optional extra."""

from __future__ import annotations

import io

import numpy as np

from tierup.errors import UnsupportedError
from tierup.ir.graph import Node
from tierup.ir.types import Array

# The formats that ONNX names. Pillow knows many more, some of which run other programs.
_FORMATS = ("BMP", "JPEG", "JPEG2000", "TIFF", "PNG", "WEBP", "PPM")
_PIXEL_LIMIT = 1 << 27  # 400 MB as RGB; a few kilobytes of PNG can claim far more


def decode(node: Node, encoded: Array) -> Array:
    """Height × width × channels in u8; what cannot be decoded gives an empty picture, as ONNX says."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise UnsupportedError(f"{node.label} needs Pillow, which is not here: install tierup[image]") from None
    kind = node.attrs["pixel_format"]
    try:
        with Image.open(io.BytesIO(encoded.tobytes()), formats=_FORMATS) as image:
            if image.width * image.height > _PIXEL_LIMIT:
                raise ValueError(f"the picture has {image.width} × {image.height} pixels, the limit is {_PIXEL_LIMIT}")
            pixels = np.array(image.convert("L" if kind == "Grayscale" else "RGB"))
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError):
        return np.zeros((0, 0, 1 if kind == "Grayscale" else 3), np.uint8)
    if kind == "Grayscale":
        return pixels[:, :, None]
    return pixels[:, :, ::-1] if kind == "BGR" else pixels
