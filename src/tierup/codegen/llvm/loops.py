"""The grid and serial loops. Each runs over full steps without masks; a ragged last step is written a second time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tierup.codegen.llvm.elements import register_type, vector
from tierup.codegen.llvm.frame import Frame, Place, Scope, Value, walk
from tierup.lower.tile import Grid, Load, Loop, Size, Statement, Store

Block = Callable[[Sequence[Statement], Scope], None]  # writes statements
Phis = list[dict[Place, list[int]]]  # where the phis of each carried value stand


def emit_grid(frame: Frame, block: Block) -> None:
    """for p in [begin, end): decode the position along each dimension, then the body."""
    w, grids = frame.writer, frame.program.grid
    counts = [_count(frame, grid) for grid in grids]
    before, top, done = w.label, w.fresh_label("grid"), w.fresh_label("done")
    w.branch(w.value("icmp slt i64 %begin, %end"), top, done)
    w.start(top)
    piece, phi = _phi(frame, "i64", "%begin", before)
    rest, positions = piece, []
    for grid, count in reversed(list(zip(grids, counts, strict=True))):
        at = rest
        if grid is not grids[0]:
            at = w.value(f"urem i64 {rest}, {count}")
            rest = w.value(f"udiv i64 {rest}, {count}")
        positions.append(w.value(f"mul i64 {at}, {grid.step}") if grid.step > 1 else at)
    _inside_grid(frame, list(zip(grids, reversed(positions), strict=True)), Scope(), block)
    following = w.value(f"add i64 {piece}, 1")
    _close(frame, phi, following)
    w.branch(w.value(f"icmp slt i64 {following}, %end"), top, done)
    w.start(done)


def _count(frame: Frame, grid: Grid) -> str:
    """How many steps a dimension has."""
    extent = frame.size(grid.extent)
    if grid.step == 1:
        return extent
    up = frame.writer.value(f"add i64 {extent}, {grid.step - 1}")
    return frame.writer.value(f"udiv i64 {up}, {grid.step}")


def _inside_grid(frame: Frame, pending: list[tuple[Grid, str]], scope: Scope, block: Block) -> None:
    """Enter the grid's dimensions one by one; each that may be ragged splits the code in two."""
    body = frame.program.body
    if not pending:
        block(body, scope)
        return
    (grid, position), *others = pending
    w = frame.writer
    if _divides(grid.extent, grid.step):
        _inside_grid(frame, others, _entered(frame, scope, grid.axis, position, None, body), block)
        return
    left = w.value(f"sub i64 {frame.size(grid.extent)}, {position}")
    whole, ragged, after = w.fresh_label("whole"), w.fresh_label("ragged"), w.fresh_label("after")
    w.branch(w.value(f"icmp sge i64 {left}, {grid.step}"), whole, ragged)
    for label, valid in ((whole, None), (ragged, left)):
        w.start(label)
        _inside_grid(frame, others, _entered(frame, scope, grid.axis, position, valid, body), block)
        w.jump(after)
    w.start(after)


def _entered(
    frame: Frame, scope: Scope, axis: str, position: str, valid: str | None, body: Sequence[Statement]
) -> Scope:
    """The scope inside a loop, with the products of its position that addresses in `body` need."""
    inner = scope.inside(axis, position, valid)
    for statement in walk(body):
        if isinstance(statement, Load | Store):
            for name, stride in (*statement.index.axes, *statement.index.starts):
                if name == axis and stride not in (0, 1) and (axis, stride) not in inner.products:
                    text = f"mul i64 {position}, {frame.size(stride)}"
                    inner.products[axis, stride] = frame.writer.value(text)
    return inner


def _phi(frame: Frame, kind: str, initial: str, before: str) -> tuple[str, int]:
    """A phi whose second entry is written by `_close`, and where it stands."""
    name = frame.writer.name()
    frame.writer.lines.append(f"  {name} = phi {kind} [{initial}, %{before}]")
    return name, len(frame.writer.lines) - 1


def _close(frame: Frame, phi: int, value: str) -> None:
    """The phi takes `value` when it is reached from the block that is being written."""
    frame.writer.lines[phi] += f", [{value}, %{frame.writer.label}]"


def emit_loop(frame: Frame, loop: Loop, scope: Scope, block: Block) -> None:
    """Full steps in a loop without masks, then the ragged one, if there is one."""
    carried = [scope.values[initial] for _, initial in loop.carried]
    full, begin = _full_extent(frame, loop), frame.size(loop.begin)
    if loop.sums:
        results = _blocks(frame, loop, scope, carried, full, block)
    else:
        results = _full_steps(frame, loop, scope, carried, begin, full, block)
    if not _never_ragged(loop):
        results = _ragged_step(frame, loop, scope, results, full, block)
    for name, value in zip(loop.results, results, strict=True):
        frame.define(scope, name, value)


def _full_extent(frame: Frame, loop: Loop) -> str:
    """Where the last full step ends."""
    extent = frame.size(loop.extent)
    if _never_ragged(loop):
        return extent
    if isinstance(loop.extent, int) and isinstance(loop.begin, int):
        return str(loop.extent - (loop.extent - loop.begin) % loop.step)
    w = frame.writer
    length = w.value(f"sub i64 {extent}, {frame.size(loop.begin)}") if loop.begin != 0 else extent
    rest = w.value(f"urem i64 {length}, {loop.step}")
    return w.value(f"sub i64 {extent}, {rest}")


def _blocks(frame: Frame, loop: Loop, scope: Scope, carried: list[Value], full: str, block: Block) -> list[Value]:
    """Full steps in blocks, each in a loop of its own whose sums begin at 0 and are added to those before it."""
    w, begin = frame.writer, frame.size(loop.begin)
    before, top, after = w.label, w.fresh_label("blocks"), w.fresh_label("after")
    w.branch(w.value(f"icmp sgt i64 {full}, {begin}"), top, after)
    w.start(top)
    position, phi = _phi(frame, "i64", begin, before)
    inside, phis = _carried_in(frame, carried, before)
    following = w.value(f"add i64 {position}, {loop.block * loop.step}")
    more = w.value(f"icmp slt i64 {following}, {full}")
    end = w.value(f"select i1 {more}, i64 {following}, i64 {full}")
    summed = [name in loop.sums for name, _ in loop.carried]
    begun = [_zero(frame, old) if anew else old for old, anew in zip(inside, summed, strict=True)]
    ended = _full_steps(frame, loop, scope, begun, position, end, block)
    added = [_added(frame, a, b) if anew else b for a, b, anew in zip(inside, ended, summed, strict=True)]
    _close(frame, phi, following)
    _close_all(frame, phis, added)
    latch = w.label
    w.branch(more, top, after)
    w.start(after)
    return [_merge(frame, first, before, last, latch) for first, last in zip(carried, added, strict=True)]


def _zero(frame: Frame, value: Value) -> Value:
    return frame.value(value.type, lambda place, chunk, lanes: frame.splat(value.type.dtype, "0.0", lanes))


def _added(frame: Frame, one: Value, other: Value) -> Value:
    def make(place: Place, chunk: int, lanes: int) -> str:
        return frame.writer.value(f"fadd {frame.kind(one)} {one.parts[place][chunk]}, {other.parts[place][chunk]}")

    return frame.value(one.type, make)


def _full_steps(
    frame: Frame, loop: Loop, scope: Scope, carried: list[Value], begin: str, full: str, block: Block
) -> list[Value]:
    w = frame.writer
    before, top, after = w.label, w.fresh_label("loop"), w.fresh_label("after")
    enters = w.value(f"icmp sgt i64 {full}, {begin}")
    if loop.when:
        enters = w.value(f"and i1 {enters}, {frame.element(scope.values[loop.when], {})}")
    w.branch(enters, top, after)
    w.start(top)
    position, phi = _phi(frame, "i64", begin, before)
    inside, phis = _carried_in(frame, carried, before)
    inner = _entered(frame, scope, loop.axis, position, None, loop.body)
    for (name, _), value in zip(loop.carried, inside, strict=True):
        frame.define(inner, name, value)
    block(loop.body, inner)
    following = w.value(f"add i64 {position}, {loop.step}")
    yielded = [inner.values[name] for name in loop.yields]
    _close(frame, phi, following)
    _close_all(frame, phis, yielded)
    latch = w.label
    w.branch(w.value(f"icmp slt i64 {following}, {full}"), top, after)
    w.start(after)
    return [_merge(frame, first, before, last, latch) for first, last in zip(carried, yielded, strict=True)]


def _carried_in(frame: Frame, carried: list[Value], before: str) -> tuple[list[Value], Phis]:
    """Phis for all registers of what a loop carries."""
    values, phis = list[Value](), Phis()
    for value in carried:
        parts: dict[Place, list[str]] = {}
        lines: dict[Place, list[int]] = {}
        for place, registers in value.parts.items():
            made = [_phi(frame, frame.kind(value), register, before) for register in registers]
            parts[place], lines[place] = [name for name, _ in made], [line for _, line in made]
        values.append(Value(value.type, value.lane, parts))
        phis.append(lines)
    return values, phis


def _close_all(frame: Frame, phis: Phis, values: list[Value]) -> None:
    """The phis of what a loop carries take what its rounds made."""
    for places, value in zip(phis, values, strict=True):
        for place, registers in value.parts.items():
            for line, register in zip(places[place], registers, strict=True):
                _close(frame, line, register)


def _ragged_step(frame: Frame, loop: Loop, scope: Scope, values: list[Value], full: str, block: Block) -> list[Value]:
    w = frame.writer
    left = w.value(f"sub i64 {frame.size(loop.extent)}, {full}")
    before, ragged, after = w.label, w.fresh_label("ragged"), w.fresh_label("whole")
    w.branch(w.value(f"icmp sgt i64 {left}, 0"), ragged, after)
    w.start(ragged)
    inner = _entered(frame, scope, loop.axis, full, left, loop.body)
    for (name, _), value in zip(loop.carried, values, strict=True):
        frame.define(inner, name, value)
    block(loop.body, inner)
    kept = [
        _keep_outside(frame, inner, old, inner.values[name], loop.axis)
        for old, name in zip(values, loop.yields, strict=True)
    ]
    end = w.label
    w.jump(after)
    w.start(after)
    return [_merge(frame, old, before, new, end) for old, new in zip(values, kept, strict=True)]


def _keep_outside(frame: Frame, scope: Scope, old: Value, new: Value, axis: str) -> Value:
    """What was carried stays beyond the edge of the axis that ends here."""
    if axis not in new.type.axes:
        return new
    layout = frame.layout(new.type)
    kind, truth = register_type(new.type.dtype, layout.lanes), vector("i1", layout.lanes)

    def make(place: Place, chunk: int, lanes: int) -> str:
        number = chunk if axis == layout.lane else place[layout.rows.index(axis)]
        mask = frame.mask(scope, axis, number, lanes, along_lanes=axis == layout.lane)
        after, before = new.parts[place][chunk], old.parts[place][chunk]
        return frame.writer.value(f"select {truth} {mask}, {kind} {after}, {kind} {before}")

    return frame.value(new.type, make)


def _merge(frame: Frame, first: Value, one: str, second: Value, other: str) -> Value:
    """A value that comes from either of two blocks."""
    kind = frame.kind(first)

    def make(place: Place, chunk: int, lanes: int) -> str:
        a, b = first.parts[place][chunk], second.parts[place][chunk]
        return frame.writer.value(f"phi {kind} [{a}, %{one}], [{b}, %{other}]")

    return frame.value(first.type, make)


def _divides(extent: Size, step: int) -> bool:
    return step == 1 or (isinstance(extent, int) and extent % step == 0)


def _never_ragged(loop: Loop) -> bool:
    return loop.exact or loop.step == 1 or (loop.begin == 0 and _divides(loop.extent, loop.step))
