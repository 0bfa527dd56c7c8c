"""Prepares the native module for this process: element types, errors, threads."""

from __future__ import annotations

from tierup import _native
from tierup.config import Config
from tierup.errors import InputError
from tierup.ir.types import DType


def configure(config: Config) -> None:
    """Tell native code what it needs to know before the first model runs. Safe to repeat."""
    _native.set_dtypes({dtype.code: dtype.numpy for dtype in DType if dtype is not DType.STR})
    _native.set_call_error(InputError)
    assert config.threads is not None  # Config fills it in
    _native.set_threads(config.threads)
