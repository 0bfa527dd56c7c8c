"""How values and figures look on the terminal, and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tierup.errors import StoreError


def brief(value: Any) -> str:
    """One line about a value: dtype, shape, range, first elements."""
    if isinstance(value, np.ndarray):
        head = f"{value.dtype}{list(value.shape)}"
        if value.size == 0 or value.dtype == object:
            return f"{head}  {_first(value)}" if value.size else f"{head}  empty"
        if value.dtype == bool or not np.issubdtype(value.dtype, np.number):
            return f"{head}  {_first(value)}"
        wide = value.astype(np.complex128 if value.dtype.kind == "c" else np.float64)
        if value.dtype.kind == "c":
            return f"{head}  {_first(value)}"
        return f"{head}  min {wide.min():.5g}, mean {wide.mean():.5g}, max {wide.max():.5g}  {_first(value)}"
    if isinstance(value, list):
        return f"list of {len(value)}" + (f": {brief(value[0])}, …" if value else "")
    if isinstance(value, dict):
        return f"dict of {len(value)}"
    return repr(value)


def _first(array: np.ndarray[Any, Any], count: int = 4) -> str:
    items = [f"{item:.5g}" if isinstance(item, float) else str(item) for item in array.reshape(-1)[:count].tolist()]
    return "[" + ", ".join(items) + (", …" if array.size > count else "") + "]"


def duration(seconds: float) -> str:
    """Three digits and a unit that suits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size or unit == "µs":
            return f"{seconds / size:.3g} {unit}"
    raise AssertionError


def shape_text(shape: tuple[int | str | None, ...] | None) -> str:
    """A declared shape; `?` where nothing is said."""
    if shape is None:
        return "of any rank"
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"


def write_json(path: Path | None, record: dict[str, Any]) -> None:
    """Write `record` where the user asked for it."""
    if path is None:
        return
    try:
        path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise StoreError(f"'{path}' cannot be written: {error.strerror}") from error
