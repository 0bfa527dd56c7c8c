"""Prepares the native module for this process: element types, errors, threads."""

from __future__ import annotations

from tierup import _native
from tierup.config import Config
from tierup.errors import InputError
from tierup.ir.types import DType


def configure(config: Config, all_dtypes: bool = True) -> None:
    """Tell native code what it needs to know before the first model runs. Safe to repeat.

    Without `all_dtypes`, the types that are not NumPy's own can follow later: they take some milliseconds to import.
    """
    register_dtypes(all_dtypes)
    _native.set_call_error(InputError)
    _native.set_threads(config.threads)


def register_dtypes(all_dtypes: bool = True) -> None:
    """Tell native code which NumPy types stand behind the type codes. Adds to what it knows."""
    known = [dtype for dtype in DType if dtype is not DType.STR and (all_dtypes or dtype.is_builtin)]
    _native.set_dtypes({dtype.code: dtype.numpy for dtype in known})
