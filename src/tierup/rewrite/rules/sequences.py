"""Sequences and optionals as plain tensors, where what they hold can be told from how they were made.

The items of a sequence are known where it was constructed, cut at known places, or made of such by insertion and
erasure at known positions. Of a tensor that was cut into slices of one, in calls of any size, each item is a lookup. A
loop that does nothing with a sequence but append to it gives its items as results of its steps.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tierup.ir.dims import values_read
from tierup.ir.graph import Attrs, Graph, Node, Value, ValueId
from tierup.ir.types import OptionalType, SequenceType, Shape, TensorType, without_dims
from tierup.rewrite.rules.row import Simplification, numbers
from tierup.rewrite.walk import Rewriter, Values

_MOST_ITEMS = 256  # of a sequence that is taken apart; each is a node or two
_VERSIONS = {
    "Concat": 13, "Gather": 13, "Mul": 14, "Reshape": 14, "Shape": 15, "Slice": 13, "Split": 13, "Transpose": 13,
    "Unsqueeze": 13,
}  # fmt: skip


class _Piece(Struct, frozen=True):
    """The item of a tensor that was cut into pieces of these sizes along an axis; `drops` it where they are of one."""

    source: ValueId
    axis: int
    sizes: tuple[int, ...]
    index: int
    drops: bool


_Item = ValueId | _Piece


def _node(out: Rewriter, op: str, *inputs: ValueId, **attrs: int | tuple[int, ...]) -> ValueId:
    (result,) = out.node(f"onnx.{op}", inputs, Attrs(attrs), version=_VERSIONS[op])
    assert result is not None
    return result


def _ints(out: Rewriter, *numbers: int) -> ValueId:
    return out.weight(np.array(numbers, np.int64))


def _number(out: Rewriter, number: int) -> ValueId:
    return out.weight(np.array(number, np.int64))


def _tensor(out: Rewriter, item: _Item) -> ValueId:
    """An item as a value of the graph."""
    if isinstance(item, int):
        return item
    if item.drops:
        return _node(out, "Gather", item.source, _number(out, item.index), axis=item.axis)
    wanted = [index == item.index for index in range(len(item.sizes))]
    given = (item.source, _ints(out, *item.sizes))
    results = out.node("onnx.Split", given, Attrs({"axis": item.axis}), version=_VERSIONS["Split"], outputs=wanted)
    part = results[item.index]
    assert part is not None
    return part


def _items(out: Rewriter, sequence: ValueId | None) -> list[_Item] | None:
    """What a sequence holds, where that is known; None where it is not, or is much."""
    made = out.producer(sequence)
    found: list[_Item] | None = None
    if made is None:
        return None
    if made.op == "onnx.SequenceConstruct":
        found = [value for value in made.inputs if value is not None]
    elif made.op == "onnx.SequenceEmpty":
        found = []
    elif made.op == "onnx.SplitToSequence":
        found = _pieces(out, made)
    elif made.op in ("onnx.SequenceInsert", "onnx.SequenceErase"):
        found = _changed(out, made)
    return found if found is not None and len(found) <= _MOST_ITEMS else None


def _changed(out: Rewriter, node: Node) -> list[_Item] | None:
    """The items behind an insertion or erasure."""
    items, is_insert = _items(out, node.inputs[0]), node.op == "onnx.SequenceInsert"
    if items is None:
        return None
    last = len(items) if is_insert else len(items) - 1
    stated = node.inputs[2 if is_insert else 1] if len(node.inputs) > (2 if is_insert else 1) else None
    place = last if stated is None else _position(out, stated, len(items))
    if place is None or not 0 <= place <= last:
        return None
    if not is_insert:
        return items[:place] + items[place + 1 :]
    item = node.inputs[1]
    return None if item is None else [*items[:place], item, *items[place:]]


def _position(out: Rewriter, value: ValueId | None, count: int) -> int | None:
    """A known position, counted from the front; what lies outside is left to the node itself to say."""
    found = numbers(out, value)
    if found is None or len(found) != 1:
        return None
    return found[0] + count if found[0] < 0 else found[0]


def _cut(out: Rewriter, node: Node) -> tuple[ValueId, int, bool] | None:
    """The tensor that was cut, the axis from the front, and whether it went; None where the rank is open."""
    x = node.inputs[0]
    shape = out.shape(x)
    if x is None or shape is None:
        return None
    by_ones = len(node.inputs) < 2 or node.inputs[1] is None
    return x, node.attrs["axis"] % len(shape), by_ones and not node.attrs["keepdims"]


def _pieces(out: Rewriter, node: Node) -> list[_Item] | None:
    cut = _cut(out, node)
    if cut is None:
        return None
    x, axis, drops = cut
    total = (out.shape(x) or ())[axis]
    stated = node.inputs[1] if len(node.inputs) > 1 else None
    given = (1,) if stated is None else numbers(out, stated)
    if given is None or any(size < 0 for size in given):
        return None
    if stated is not None and out.shape(stated) != ():
        sizes = given
    elif isinstance(total, int) and given[0] > 0 and total <= _MOST_ITEMS * given[0]:
        sizes = tuple(min(given[0], total - start) for start in range(0, total, given[0]))
    else:
        return None
    return [_Piece(x, axis, sizes, index, drops) for index in range(len(sizes))]


def _by_ones(out: Rewriter, sequence: ValueId | None) -> tuple[ValueId, int, bool] | None:
    """The tensor that was cut into slices of one, however many, the axis, and whether it went."""
    made = out.producer(sequence)
    if made is None or made.op != "onnx.SplitToSequence":
        return None
    stated = made.inputs[1] if len(made.inputs) > 1 else None
    if stated is not None and (out.shape(stated) != () or numbers(out, stated) != (1,)):
        return None
    return _cut(out, made)


def _at(out: Rewriter, node: Node) -> Values | None:
    sequence, position = node.inputs
    items = _items(out, sequence)
    known = None if items is None else _position(out, position, len(items))
    if items is not None and known is not None:
        return [_tensor(out, items[known])] if 0 <= known < len(items) else None
    cut = _by_ones(out, sequence)
    if cut is None or position is None or out.shape(position) not in ((), (1,)):
        return None
    x, axis, drops = cut
    place = _node(out, "Reshape", position, _ints(out, *(() if drops else (1,))), allowzero=0)
    return [_node(out, "Gather", x, place, axis=axis)]


def _length(out: Rewriter, node: Node) -> Values | None:
    items = _items(out, node.inputs[0])
    if items is not None:
        return [_number(out, len(items))]
    cut = _by_ones(out, node.inputs[0])
    if cut is None:
        return None
    x, axis, _ = cut
    return [_node(out, "Reshape", _node(out, "Shape", x, start=axis, end=axis + 1), _ints(out), allowzero=0)]


def _concat(out: Rewriter, node: Node) -> Values | None:
    items, axis, stacks = _items(out, node.inputs[0]), node.attrs["axis"], bool(node.attrs["new_axis"])
    if items:
        parts = [_tensor(out, item) for item in items]
        if stacks:
            parts = [_node(out, "Unsqueeze", part, _ints(out, axis)) for part in parts]
        return [_node(out, "Concat", *parts, axis=axis)]
    cut = _by_ones(out, node.inputs[0])
    if cut is None:
        return None
    x, along, drops = cut
    whole = x if drops else _node(out, "Unsqueeze", x, _ints(out, along + 1))  # so that slices have it where they had
    return _joined(out, whole, along, axis, stacks)


def _joined(out: Rewriter, x: ValueId, cut: int, axis: int, stacks: bool) -> Values | None:
    """All slices of x along one axis, joined along another of theirs, or stacked on a new one."""
    rank = len(out.shape(x) or ())
    axis = axis % (rank if stacks else max(rank - 1, 1))
    rest = [i for i in range(rank) if i != cut]
    if not stacks and not rest:
        return None
    moved = _node(out, "Transpose", x, perm=(*rest[:axis], cut, *rest[axis:]))
    if stacks:
        return [moved]
    shape = _node(out, "Shape", moved)
    before, own, each, behind = (
        _node(out, "Slice", shape, _ints(out, start), _ints(out, end))
        for start, end in ((0, axis), (axis, axis + 1), (axis + 1, axis + 2), (axis + 2, rank))
    )
    sizes = _node(out, "Concat", before, _node(out, "Mul", own, each), behind, axis=0)
    return [_node(out, "Reshape", moved, sizes, allowzero=1)]


def _get(out: Rewriter, node: Node) -> Values | None:
    value = node.inputs[0]
    made = out.producer(value)
    if made is not None and made.op == "onnx.Optional" and made.inputs and made.inputs[0] is not None:
        return [made.inputs[0]]
    return None if value is None or isinstance(out.type(value), OptionalType) else [value]


def _has(out: Rewriter, node: Node) -> Values | None:
    value = node.inputs[0] if node.inputs else None
    made = out.producer(value)
    if made is not None and made.op == "onnx.Optional":
        value = made.inputs[0] if made.inputs else None
    elif value is not None and isinstance(out.type(value), OptionalType):
        return None
    return [out.weight(np.array(value is not None))]


_TOLD = frozenset({"onnx.SequenceAt", "onnx.SequenceLength", "onnx.ConcatFromSequence"})


def _sink(out: Rewriter, node: Node) -> Values | None:
    """What cuts or makes a sequence that bodies capture goes into them: only there do their rules see it."""
    first = len(node.inputs) - node.attrs.get("captures", 0)
    for place in range(first, len(node.inputs)):
        made = out.producer(node.inputs[place])
        if made is None or made.op not in ("onnx.SplitToSequence", "onnx.SequenceConstruct"):
            continue
        behind = place - len(node.inputs)  # counted from the end, bodies have it in the same place
        if all(_uses(body, body.inputs[behind]) <= _TOLD for _, body in node.graphs):
            return _sunk(out, node, place, made)
    return None


def _uses(body: Graph, value: ValueId) -> set[str]:
    found = {inner.op for inner in body.nodes if value in inner.inputs}
    return found | ({"output"} if value in body.outputs else set())


def _sunk(out: Rewriter, node: Node, place: int, made: Node) -> Values:
    """The node with what a captured sequence is made of as captures instead, in front of the others."""
    given = tuple(value for value in made.inputs if value is not None)
    first = len(node.inputs) - node.attrs.get("captures", 0)
    kept = (*node.inputs[first:place], *node.inputs[place + 1 :])
    graphs = tuple((name, _with_made(out, body, place - len(node.inputs), made)) for name, body in node.graphs)
    attrs = Attrs({**node.attrs, "captures": len(given) + len(kept)})
    return out.add(replace(node, inputs=(*node.inputs[:first], *kept, *given), attrs=attrs, graphs=graphs))


def _with_made(out: Rewriter, body: Graph, behind: int, made: Node) -> Graph:
    """A body that makes the sequence which it took, of inputs behind all others."""
    values, given = list(body.values), list[ValueId | None]()
    for value in made.inputs:
        if value is not None:
            values.append(Value(without_dims(out.type(value))))
        given.append(None if value is None else len(values) - 1)
    sequence = body.inputs[behind]
    inputs = [value for value in body.inputs if value != sequence] + [value for value in given if value is not None]
    first = replace(made, inputs=tuple(given), outputs=(sequence,))
    return replace(body, inputs=tuple(inputs), nodes=(first, *body.nodes), values=tuple(values))


def _collected(out: Rewriter, node: Node) -> Values | None:
    """A loop that only appends to a sequence, which begins empty, gives what it appends as results of its steps."""
    body = node.graph("body")
    count = len(node.inputs) - 2 - node.attrs.get("captures", 0)
    for number in range(count if body is not None else 0):
        assert body is not None
        item = _appended(body, number)
        if item is None or _items(out, node.inputs[2 + number]) != []:
            continue
        if _keeps_shape(body, item, count) or _is_stacked(out, node.outputs[number]):
            return _with_steps(out, node, body, number, count, item)
    return None


def _appended(body: Graph, number: int) -> ValueId | None:
    """What a body appends to a carried sequence, if it does nothing else with it."""
    carried, result = body.inputs[2 + number], body.outputs[1 + number]
    type = body.type(carried)
    if not isinstance(type, SequenceType) or not isinstance(type.elem, TensorType):
        return None
    users = [node for node in body.nodes if carried in node.inputs]
    if len(users) != 1 or users[0].op != "onnx.SequenceInsert" or users[0].outputs != (result,):
        return None
    user = users[0]
    again = any(result in node.inputs for node in body.nodes) or body.outputs.count(result) > 1
    if again or carried in body.outputs or (len(user.inputs) > 2 and user.inputs[2] is not None):
        return None
    return user.inputs[1] if user.inputs[1] != carried else None


def _keeps_shape(body: Graph, item: ValueId, count: int) -> bool:
    """Whether every step's item has the same shape: it depends on nothing that steps change."""
    shape = _shape(body, item)
    if shape is None:
        return False
    fixed = set(body.inputs[2 + count :])
    pairs = zip(body.inputs[2 : 2 + count], body.outputs[1 : 1 + count], strict=True)
    fixed |= {before for before, after in pairs if _shape(body, before) == _shape(body, after) is not None}
    sizes = {size for value in fixed for size in _shape(body, value) or ()}
    return all(isinstance(dim, int) or dim in sizes or values_read(body.dims, dim) <= fixed for dim in shape)


def _shape(body: Graph, value: ValueId) -> Shape | None:
    type = body.type(value)
    return type.shape if isinstance(type, TensorType) else None


def _is_stacked(out: Rewriter, result: ValueId | None) -> bool:
    """Whether a loop's sequence is only ever stacked, which takes items of one shape."""
    users = [node for node in out.source.nodes if result in node.inputs]
    stacks = all(node.op == "onnx.ConcatFromSequence" and node.attrs["new_axis"] for node in users)
    return bool(users) and stacks and result not in out.source.outputs


def _with_steps(out: Rewriter, node: Node, body: Graph, number: int, count: int, item: ValueId) -> Values:
    """The loop without one carried sequence: its items, stacked, are the last result, and cut again behind it."""
    without = replace(
        body,
        inputs=tuple(value for i, value in enumerate(body.inputs) if i != 2 + number),
        outputs=(*(value for i, value in enumerate(body.outputs) if i != 1 + number), item),
        nodes=tuple(n for n in body.nodes if body.outputs[1 + number] not in n.outputs),
    )
    inputs = tuple(value for i, value in enumerate(node.inputs) if i != 2 + number)
    asked = (*node.outputs, *((None,) * (len(body.outputs) - 1 - len(node.outputs))))
    wanted = [value is not None for i, value in enumerate(asked) if i != number]
    results = out.node(
        node.op, inputs, node.attrs, version=node.version, outputs=[*wanted, True], graphs=(("body", without),),
        name=node.name,
    )  # fmt: skip
    stacked = results[-1]
    assert stacked is not None
    (sequence,) = out.node("onnx.SplitToSequence", [stacked], Attrs({"axis": 0, "keepdims": 0}), version=11)
    kept = list(results[:-1])
    kept.insert(number, sequence)
    return kept[: len(node.outputs)]


SEQUENCES = (
    Simplification("known item", ("onnx.SequenceAt",), "[a, b, c][1] = b; cut(x)[i] = x[i]", _at),
    Simplification("known length", ("onnx.SequenceLength",), "|[a, b, c]| = 3; |cut(x)| = the size of x", _length),
    Simplification("known items", ("onnx.ConcatFromSequence",), "join([a, b]) = concat(a, b)", _concat),
    Simplification("what is there", ("onnx.OptionalGetElement",), "get(optional(x)) = x", _get),
    Simplification("whether it is there", ("onnx.OptionalHasElement",), "has(optional(x)) = true", _has),
    Simplification(
        "captured sequence", ("onnx.If", "onnx.Loop"), "(λs. body)(cut(x)) = (λx. body[s := cut(x)])(x)", _sink
    ),
    Simplification("collected", ("onnx.Loop",), "append in each of some steps = cut(results of all steps)", _collected),
)
SEQUENCE_OPS = frozenset(op for row in SEQUENCES for op in row.ops) - {"onnx.If", "onnx.Loop"}
