"""The library's loggers: below "tierup", and silent until the user says where logs go."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging


def logger(name: str) -> logging.Logger:
    """The logger of a module."""
    import logging  # milliseconds that a warm start does not need

    top = logging.getLogger("tierup")
    if not top.handlers:
        top.addHandler(logging.NullHandler())  # without any, Python prints warnings
    return logging.getLogger(name)


def tell(name: str, text: str, *values: object) -> None:
    """Log at level INFO, if anybody can listen: logs go nowhere before `logging` is imported."""
    if "logging" in sys.modules:
        logger(name).info(text, *values)
