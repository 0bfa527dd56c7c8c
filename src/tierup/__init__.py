"""Tierup runs a neural network at once and makes it faster while it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tierup.config import Config
from tierup.errors import ConfigError, InputError, ModelError, StoreError, TierupError, UnsupportedError

if TYPE_CHECKING:
    from tierup.session import InferenceSession, Model, load

__version__ = "0.1.0"
__all__ = [
    "Config",
    "ConfigError",
    "InferenceSession",
    "InputError",
    "Model",
    "ModelError",
    "StoreError",
    "TierupError",
    "UnsupportedError",
    "__version__",
    "load",
]


def __getattr__(name: str) -> Any:
    """Sessions are imported when first asked for: NumPy and the op table take longer than a command's --help should."""
    if name in ("InferenceSession", "Model", "load"):
        from tierup import session

        return getattr(session, name)
    raise AttributeError(f"module 'tierup' has no attribute {name!r}")
