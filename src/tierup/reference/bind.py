"""Node -> Python callable: looks up the reference function and makes its answers uniform."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from msgspec.structs import replace

from tierup.errors import InputError, TierupError
from tierup.ir.graph import Attrs, Graph, Node
from tierup.ir.ops import lookup
from tierup.ir.types import DType, dtype_from_numpy
from tierup.reference.threads import ONE_BLAS_THREAD

Bound = Callable[..., tuple[Any, ...]]
RunGraph = Callable[[Graph, Sequence[Any]], list[Any]]

# Attributes that name the dtype of a result or of the arithmetic; widening turns the floats among them into f64.
_DTYPE_ATTRS = ("dtype", "output_datatype", "output_dtype", "softmax_precision", "stash_type", "to")
LOOKUPS = frozenset(("core.gather", "core.gather_elements", "core.gather_nd"))  # read little of what may be large
_WIDENED = {DType.F32, DType.F16, DType.BF16}
_WIDENED_CODES = {dtype.code for dtype in _WIDENED}


@cache
def resolve(op: str) -> Callable[..., Any]:
    """The reference function of an op."""
    row = lookup(op)
    if row is None or not row.reference:
        raise LookupError(f"op {op} has no reference function")
    module, _, name = row.reference.rpartition(".")
    return getattr(import_module(f"tierup.reference.{module}"), name)  # type: ignore[no-any-return]


def bind(node: Node, run: RunGraph | None = None, *, wide: bool = False) -> Bound:
    """A callable that takes the node's inputs and returns a tuple with one entry for each of its outputs.

    With `wide`, f32, f16 and bf16 are computed and returned as f64.
    """
    function = resolve(node.op)
    if wide and any(name in node.attrs for name in _DTYPE_ATTRS):
        node = replace(node, attrs=_wide_attrs(node.attrs))
    extra = {"run": run} if node.graphs else {}
    one_blas_thread = nullcontext() if node.graphs else ONE_BLAS_THREAD  # the nodes of its bodies see to it
    count = len(node.outputs)

    def call(*inputs: Any) -> tuple[Any, ...]:
        if wide and node.op not in LOOKUPS:
            inputs = tuple(map(widen, inputs))
        try:
            with one_blas_thread, np.errstate(all="ignore"):  # IEEE results are the answer, not a warning
                results = function(node, *inputs, **extra)
        except TierupError:
            raise
        except Exception as error:
            raise InputError(f"{node.label} cannot be computed: {error or type(error).__name__}") from error
        if not isinstance(results, tuple):
            results = (results,)
        results = results[:count]
        return tuple(map(widen, results)) if wide else results

    return call


def widen(value: Any) -> Any:
    """f32, f16 and bf16 arrays, alone or in sequences and maps, as f64; everything else as it is."""
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.isbuiltin == 1:  # one of NumPy's own, as most are
            return value.astype(np.float64) if value.dtype.char in "ef" else value
        return value.astype(np.float64) if dtype_from_numpy(value.dtype) in _WIDENED else value
    if isinstance(value, list):
        return [widen(item) for item in value]
    if isinstance(value, dict):
        return {key: widen(item) for key, item in value.items()}
    return value


def _wide_attrs(attrs: Attrs) -> Attrs:
    return Attrs(
        {
            name: DType.F64.code if name in _DTYPE_ATTRS and value in _WIDENED_CODES else value
            for name, value in attrs.items()
        }
    )
