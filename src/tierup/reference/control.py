"""Control flow in Python, for the evaluator: `rule(node, arguments, run) -> results`.

The last `captures` arguments of a control node are what its bodies use from outside; every body takes them last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tierup.errors import InputError
from tierup.ir.graph import Graph, Node
from tierup.ir.ops.control import item_types
from tierup.ir.types import TensorType

RunGraph = Callable[[Graph, Sequence[Any]], list[Any]]


def _if(node: Node, arguments: list[Any], run: RunGraph) -> list[Any]:
    body = node.graph("then_branch" if single(node, arguments[0]) else "else_branch")
    assert body is not None
    return run(body, arguments[1:])


def single(node: Node, value: Any) -> Any:
    """The one element of a condition or a count."""
    array = np.asarray(value)
    if array.size != 1:
        raise InputError(f"{node.label} needs a single condition or count, but was given {array.size} of them")
    return array.reshape(-1)[0]


def _loop(node: Node, arguments: list[Any], run: RunGraph) -> list[Any]:
    body = node.graph("body")
    assert body is not None
    split = len(arguments) - node.attrs["captures"]
    limit, condition, carried, captures = arguments[0], arguments[1], arguments[2:split], arguments[split:]
    steps = None if limit is None else int(single(node, limit))
    going = True if condition is None else bool(single(node, condition))
    count = len(body.outputs) - 1 - len(carried)
    scans: list[list[Any]] = [[] for _ in range(count)]
    iteration = 0
    while going and (steps is None or iteration < steps):
        results = run(body, [np.array(iteration, np.int64), np.array(going), *carried, *captures])
        going = bool(single(node, results[0]))
        carried = results[1 : 1 + len(carried)]
        for scan, item in zip(scans, results[1 + len(carried) :], strict=True):
            scan.append(item)
        iteration += 1
    types = item_types(node.attrs, body, 1 + len(carried))
    return [*carried, *(stack(scan, 0, False, type) for scan, type in zip(scans, types, strict=True))]


def _scan(node: Node, arguments: list[Any], run: RunGraph) -> list[Any]:
    if node.version == 8:
        return _scan_batched(node, arguments, run)
    split = len(arguments) - node.attrs["captures"]
    return _scan_once(node, arguments[:split], arguments[split:], run)


def _scan_once(node: Node, arguments: list[Any], captures: list[Any], run: RunGraph) -> list[Any]:
    body = node.graph("body")
    assert body is not None
    n_scans: int = node.attrs["num_scan_inputs"]
    states, inputs = arguments[: len(arguments) - n_scans], arguments[len(arguments) - n_scans :]
    n_outputs = len(body.outputs) - len(states)
    in_axes = node.attrs.get("scan_input_axes") or (0,) * n_scans
    in_back = node.attrs.get("scan_input_directions") or (0,) * n_scans
    out_axes = node.attrs.get("scan_output_axes") or (0,) * n_outputs
    out_back = node.attrs.get("scan_output_directions") or (0,) * n_outputs
    moved = [np.moveaxis(array, axis, 0) for array, axis in zip(inputs, in_axes, strict=True)]
    lengths = {array.shape[0] for array in moved}
    if len(lengths) != 1:
        raise InputError(f"{node.label} scans inputs of different lengths: {sorted(lengths)}")
    length = lengths.pop()
    scans: list[list[Any]] = [[] for _ in range(n_outputs)]
    for step in range(length):
        slices = [a[length - 1 - step] if back else a[step] for a, back in zip(moved, in_back, strict=True)]
        results = run(body, [*states, *slices, *captures])
        states = results[: len(states)]
        for scan, item in zip(scans, results[len(states) :], strict=True):
            scan.append(item)
    types = item_types(node.attrs, body, len(states))
    rows = zip(scans, out_axes, out_back, types, strict=True)
    return [*states, *(stack(scan, axis, bool(back), type) for scan, axis, back, type in rows)]


def _scan_batched(node: Node, arguments: list[Any], run: RunGraph) -> list[Any]:
    """Scan of opset 8: a batch axis before everything, a length for each row of it, padding with zeros."""
    split = len(arguments) - node.attrs["captures"]
    lengths, values, captures = arguments[0], arguments[1:split], arguments[split:]
    n_scans: int = node.attrs["num_scan_inputs"]
    n_states = len(values) - n_scans
    back = node.attrs.get("directions") or (0,) * n_scans
    batch, longest = values[-1].shape[:2]
    rows = []
    for b in range(batch):
        length = longest if lengths is None else int(lengths[b])
        if not 0 <= length <= longest:
            raise InputError(f"{node.label} was given the length {length} for a sequence of {longest} steps")
        states = [value[b] for value in values[:n_states]]
        scanned = [value[b, :length] for value in values[n_states:]]
        scanned = [item[::-1] if flip else item for item, flip in zip(scanned, back, strict=True)]
        results = _scan_once(node, [*states, *scanned], captures, run)
        rows.append([*results[:n_states], *(_extended(item, longest) for item in results[n_states:])])
    if not rows:
        body = node.graph("body")
        assert body is not None
        types = [*(body.type(value) for value in body.outputs[:n_states]), *item_types(node.attrs, body, n_states)]
        return [stack([], 0, False, type) for type in types]
    return [np.stack(column) for column in zip(*rows, strict=True)]


def _extended(item: Any, length: int) -> Any:
    return np.pad(item, [(0, length - len(item))] + [(0, 0)] * (item.ndim - 1))


def sequence_map(node: Node, sequence: list[Any], *others: Any, run: RunGraph) -> tuple[list[Any], ...]:
    """The body for each item of `sequence`; other sequences go along item by item, tensors and captures as they are."""
    body = node.graph("body")
    assert body is not None
    own = len(others) - node.attrs.get("captures", 0)
    along = [isinstance(other, list) and i < own for i, other in enumerate(others)]
    for other, each in zip(others, along, strict=True):
        if each and len(other) != len(sequence):
            raise ValueError(f"the sequences have {len(sequence)} and {len(other)} items")
    results: tuple[list[Any], ...] = tuple([] for _ in body.outputs)
    for i, item in enumerate(sequence):
        rest = [other[i] if each else other for other, each in zip(others, along, strict=True)]
        for result, value in zip(results, run(body, [item, *rest]), strict=True):
            result.append(value)
    return results


def stack(items: list[Any], axis: int, reverse: bool, type: Any) -> Any:
    """The per-step results of a loop as one tensor; with no steps, an empty one of the body's type."""
    if items:
        arrays = [np.asarray(item) for item in (items[::-1] if reverse else items)]
        if len({array.shape for array in arrays}) > 1:
            raise InputError(f"steps gave items of different shapes: {sorted({array.shape for array in arrays})}")
        return np.stack(arrays, axis)
    assert isinstance(type, TensorType)
    shape = [dim if isinstance(dim, int) else 0 for dim in type.shape or ()]
    shape.insert(axis if axis >= 0 else len(shape) + 1 + axis, 0)
    return np.empty(shape, type.dtype.numpy)


CONTROL: dict[str, Callable[[Node, list[Any], RunGraph], list[Any]]] = {
    "onnx.If": _if,
    "onnx.Loop": _loop,
    "onnx.Scan": _scan,
}
