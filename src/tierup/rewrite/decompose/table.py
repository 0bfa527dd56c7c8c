"""Every decomposition by op. A family is added here, and nowhere else: `name.py` holds its table, `NAME`.

Families are imported when one of their ops is asked for: a model has ops of a few, and all of them take 20 ms, which
the first kernels of a model would wait for.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from tierup.rewrite.decompose.core import Decomposition

_SHARED = (
    "elementwise", "movement", "reduce", "select", "norm", "matrix", "nn", "generate", "attention", "quant",
    "recurrent", "vision", "distinct", "sampling", "signal", "suppression", "elimination", "linear_attention",
    "microsoft",
)  # fmt: skip
_OF_DOMAIN = {
    "ml": ("ml", "linear_models", "trees"),
    "ms": ("distinct", "microsoft", "microsoft_quant", "microsoft_attention", "microsoft_lstm"),
}
FAMILIES = tuple(dict.fromkeys((*_SHARED, *_OF_DOMAIN["ml"], *_OF_DOMAIN["ms"])))


@cache
def family(name: str) -> dict[str, Decomposition]:
    """The decompositions of a family by op."""
    found: dict[str, Decomposition] = getattr(import_module(f"tierup.rewrite.decompose.{name}"), name.upper())
    return found


@cache
def decomposition(op: str) -> Decomposition | None:
    """The decomposition of an op, if it has one."""
    names = _OF_DOMAIN.get(op.partition(".")[0], _SHARED)
    return next((family(name)[op] for name in names if op in family(name)), None)
