"""The table of simplifications: each row is a pattern and a function, exact to the bit, with its algebra beside it."""

from __future__ import annotations

from tierup.ir.graph import Node
from tierup.rewrite.rules.arithmetic import ARITHMETIC
from tierup.rewrite.rules.control import CONTROL
from tierup.rewrite.rules.movement import MOVEMENT
from tierup.rewrite.rules.row import Simplification
from tierup.rewrite.rules.sequences import SEQUENCES
from tierup.rewrite.walk import Rewriter, Values

__all__ = ["TABLE", "Simplification", "simpler"]

TABLE: tuple[Simplification, ...] = (*ARITHMETIC, *MOVEMENT, *CONTROL, *SEQUENCES)

_BY_OP: dict[str, list[Simplification]] = {}
for _row in TABLE:
    for _op in _row.ops:
        _BY_OP.setdefault(_op, []).append(_row)


def simpler(out: Rewriter, node: Node) -> Values | None:
    """What the first row that applies makes of a node."""
    for row in _BY_OP.get(node.op, ()):
        replaced = row.rule(out, node)
        if replaced is not None:
            return replaced
    return None
