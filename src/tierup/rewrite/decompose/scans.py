"""Recurrences that no core op carries, as Scans: their bodies are core ops."""

from __future__ import annotations

from collections.abc import Sequence

from tierup.ir.graph import Attr, Attrs, Graph, ValueId
from tierup.rewrite.decompose.core import Core

_VERSION = 11


def scan(
    b: Core,
    body: Graph,
    states: Sequence[ValueId],
    scanned: Sequence[ValueId],
    captures: Sequence[ValueId] = (),
    *,
    backward: bool = False,
) -> tuple[ValueId, ...]:
    """A body for each slice of `scanned` along the first axis: the last states, and what all steps gave besides them.

    The body takes states, slices and captures, and gives states and results.
    """
    count = len(body.outputs) - len(states)
    attrs: dict[str, Attr] = {
        "num_scan_inputs": len(scanned),
        "captures": len(captures),
        "scan_input_directions": (int(backward),) * len(scanned),
        "scan_output_directions": (int(backward),) * count,
    }
    given = (*states, *scanned, *captures)
    wanted = (True,) * len(body.outputs)
    results = b.out.node("onnx.Scan", given, Attrs(attrs), version=_VERSION, outputs=wanted, graphs=(("body", body),))
    return tuple(value for value in results if value is not None)
