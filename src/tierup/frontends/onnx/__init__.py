"""ONNX -> Graph, one to one. A model file is untrusted: every number is bounded, every path resolved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tierup.frontends.onnx.load import Imported, load_onnx

__all__ = ["Imported", "load_onnx"]


def __getattr__(name: str) -> Any:
    """Imported when first asked for: a warm start opens external files by this package's rules and needs no more."""
    if name in __all__:
        from tierup.frontends.onnx import load

        return getattr(load, name)
    raise AttributeError(f"module 'tierup.frontends.onnx' has no attribute {name!r}")
