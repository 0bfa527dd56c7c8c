"""ONNX -> Graph, one to one. A model file is untrusted: every number is bounded, every path resolved."""

from tierup.frontends.onnx.load import Imported, load_onnx

__all__ = ["Imported", "load_onnx"]
