"""The form of one row of the op table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct, field

from tierup.ir.graph import Attr
from tierup.ir.infer import Rule


class Kind(Enum):
    """What a node of this op is in the graph."""

    OPERATOR = "operator"
    TRANSFER = "transfer"  # moves data between layouts or devices and computes nothing
    CONTROL = "control"  # runs bodies


class Signature(Struct, frozen=True):
    """Arity and attributes of an op whose schema the `onnx` package does not ship."""

    inputs: tuple[int, int]  # least and most
    outputs: tuple[int, int]
    defaults: Mapping[str, Attr] = field(default_factory=dict)  # attributes that may be left out, with their value
    optional: tuple[str, ...] = ()  # attributes that may be left out and then have no value
    required: tuple[str, ...] = ()


class Op(Struct, frozen=True):
    """One row: see the package's docstring.

    `reference` is `module.function` in `tierup.reference`; control ops have none, the executors know them.
    `pure` is False where two equal nodes may answer differently (random numbers): such nodes are neither folded nor
    merged. `core` is empty, or the reason why this op stays whole when graphs are decomposed.
    """

    name: str
    doc: str
    infer: Rule
    reference: str = ""
    kind: Kind = Kind.OPERATOR
    pure: bool = True
    core: str = ""
    signature: Signature | None = None
