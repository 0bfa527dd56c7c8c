"""Where the values between kernels lie in one arena: offsets as dim code that is right for every size.

In: the values with their sizes, which may be open, the steps between which each is needed, and a typical number for
each size. Out: an offset for each value and the size of the arena, as dims. The typical numbers only decide which of
two values that are alive together lies below the other. An offset is then the highest end of what lies below, so two
such values never overlap, whatever the sizes turn out to be, as long as none is negative (such a call cannot go on).

Where all sizes are numbers, values may lie around common centres instead (`plan_lanes`). Two threads mostly write the
first and the second half of a value: then each writes again what lies in its own cache, and fetches no line from the
other's. With two cores 0.2 µs apart, mobilenet_v2 took 3.6 ms on two threads instead of 4.15.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from tierup.ir.dims import READS, DimBuilder, DimError, apply
from tierup.ir.types import Dim, Sym
from tierup.plan.pack import Span, busiest, pack

ALIGNMENT = 64  # bytes; the native program wants offsets to be multiples of it
_MORE_BYTES = 4 << 20  # that lanes may take, or a quarter more where that is more
_LONGEST_PRODUCT = 64  # factors that are looked at to see that a size needs no rounding


class Request(Struct, frozen=True):
    """One value between kernels: its bytes, the step that writes it and the last one that reads it.

    `reuses` are keys of values whose memory it may take over in place. That is done where such a value has the same
    size, was written earlier and is read for the last time by the step that writes this one; others are passed over.
    """

    key: int
    size: Dim
    first: int
    last: int
    reuses: tuple[int, ...] = ()


class Layout(Struct, frozen=True):
    """The byte offset of each value, by key, and the bytes of the arena: multiples of the alignment."""

    offsets: dict[int, Dim]
    total: Dim


def plan_memory(requests: Iterable[Request], dims: DimBuilder, sample: Callable[[Dim], int]) -> Layout:
    """Offsets as dims of `dims`, tight at the sizes that `sample` gives and right for all others."""
    blocks = _blocks(requests)
    offsets: dict[int, Dim] = {key: 0 for block in blocks if block.size == 0 for key in block.keys}
    blocks = [block for block in blocks if block.size != 0]
    spans = _spans(blocks, sample, least=1)  # what is 0 at the sample may be more elsewhere
    packed = pack(spans)
    aligned = {size: _aligned(size, dims) for size in dict.fromkeys(block.size for block in blocks)}
    skyline = _Skyline(spans)
    ends: list[Dim] = [0] * len(blocks)
    for number in sorted(range(len(blocks)), key=packed.__getitem__):
        offset = _highest([ends[below] for below in skyline.raise_by(number)], dims)
        ends[number] = dims.add(offset, aligned[blocks[number].size])
        offsets.update(dict.fromkeys(blocks[number].keys, offset))
    return Layout(offsets, _highest([ends[number] for number in skyline.peaks()], dims))


def plan_lanes(requests: Iterable[Request], packed: Dim) -> Layout | None:
    """A lane for each of the values that are alive together, and each in the middle of one. None where a size is open,
    or this takes much more than the `packed` bytes of another layout."""
    blocks = _blocks(requests)
    sizes = [block.size for block in blocks if isinstance(block.size, int)]
    if not isinstance(packed, int) or len(sizes) < len(blocks):
        return None
    spans = [Span(b.first, b.last, -(-size // ALIGNMENT)) for b, size in zip(blocks, sizes, strict=True)]
    lanes = _lanes(spans)
    total = sum(lane.units for lane in lanes) * ALIGNMENT
    if total > packed + max(packed // 4, _MORE_BYTES):
        return None
    offsets: dict[int, Dim] = {}
    begin = 0
    for lane in lanes:
        for number in lane.numbers:
            offset = (begin + (lane.units - spans[number].units) // 2) * ALIGNMENT
            offsets.update(dict.fromkeys(blocks[number].keys, offset))
        begin += lane.units
    return Layout(offsets, total)


class _Lane(Struct):
    """Memory of one block at a time: their numbers, the units of the largest, and the last step of the latest."""

    numbers: list[int]
    units: int = 0
    last: int = 0


def _lanes(spans: Sequence[Span]) -> list[_Lane]:
    """Blocks in order of their first use, each in the lane that it fits best, or that grows the least by it."""
    lanes: list[_Lane] = []
    for number in sorted(range(len(spans)), key=lambda number: (spans[number].first, -spans[number].units)):
        span = spans[number]
        free = [lane for lane in lanes if lane.last < span.first]
        wide = [lane for lane in free if lane.units >= span.units]
        if wide:
            lane = min(wide, key=lambda lane: lane.units)
        elif free:
            lane = max(free, key=lambda lane: lane.units)
        else:
            lane = _Lane([])
            lanes.append(lane)
        lane.numbers.append(number)
        lane.units, lane.last = max(lane.units, span.units), span.last
    return lanes


def lower_bound(requests: Iterable[Request], sample: Callable[[Dim], int]) -> int:
    """The bytes that are alive together at the busiest step: no layout with these take-overs needs less."""
    return busiest(_spans(_blocks(requests), sample, least=0)) * ALIGNMENT


class _Block(Struct):
    """Memory that one value has, or several in turn: taken over in place, each ends where the next begins."""

    keys: list[int]
    size: Dim
    first: int
    last: int


def _blocks(requests: Iterable[Request]) -> list[_Block]:
    """Values that take over from each other, as one block each."""
    values = _values(requests)
    blocks: list[_Block] = []
    open_at: dict[int, _Block] = {}  # by the value that has the block now
    # Among the results of one step, who has less choice comes first.
    for value in sorted(values.values(), key=lambda value: (value.first, len(value.reuses))):
        for key in value.reuses:
            block = open_at.get(key)
            if block and block.size == value.size and values[key].first < value.first == block.last:
                del open_at[key]
                block.keys.append(value.key)
                block.last = value.last
                break
        else:
            block = _Block([value.key], value.size, value.first, value.last)
            blocks.append(block)
        open_at[value.key] = block
    return blocks


def _values(requests: Iterable[Request]) -> dict[int, Request]:
    """The requests by key. Two with one key are one value, alive from the first's beginning to the last's end."""
    values: dict[int, Request] = {}
    for request in requests:
        if request.last < request.first:
            raise ValueError(
                f"value {request.key} is written in step {request.first} and read last in step {request.last}; "
                "a value that nobody reads ends in the step that writes it"
            )
        known = values.get(request.key)
        if known is not None:
            if known.size != request.size:
                raise ValueError(f"value {request.key} has two sizes: {known.size} and {request.size}")
            first, last = min(known.first, request.first), max(known.last, request.last)
            request = Request(request.key, request.size, first, last, known.reuses + request.reuses)
        values[request.key] = request
    return values


def _spans(blocks: Sequence[_Block], sample: Callable[[Dim], int], least: int) -> list[Span]:
    """The blocks in numbers, sizes in units of the alignment and not below `least`."""
    units = {size: max(least, -(-sample(size) // ALIGNMENT)) for size in {block.size for block in blocks}}
    return [Span(block.first, block.last, units[block.size]) for block in blocks]


def _aligned(size: Dim, dims: DimBuilder) -> Dim:
    """A size rounded up to the alignment; nothing is recorded for a product with a multiple of it."""
    factor, rest = 1, size
    for _ in range(_LONGEST_PRODUCT):
        if not isinstance(rest, Sym) or dims.ops[rest.id].op != "mul":
            break
        left, right = dims.ops[rest.id].args
        left, right = (right, left) if isinstance(left, int) else (left, right)
        factor, rest = factor * (right if isinstance(right, int) else 1), left
        if factor % ALIGNMENT == 0:
            return size
    return dims.mul(dims.ceildiv(size, ALIGNMENT), ALIGNMENT)


def _highest(ends: Sequence[Dim], dims: DimBuilder) -> Dim:
    """The largest of some ends, 0 if there are none; numbers are compared here."""
    numbers = [end for end in ends if isinstance(end, int)]
    terms: list[Dim] = list(dict.fromkeys(end for end in ends if isinstance(end, Sym)))
    if any(numbers) or not terms:
        terms.append(max(numbers, default=0))
    highest = terms[0]
    for term in terms[1:]:
        highest = dims.max(highest, term)
    return highest


class _Skyline:
    """The topmost block at each step, while blocks are laid on top of each other from the lowest up.

    A block need only stay clear of those right below it in all the steps that the two share: wherever there is another
    between two blocks, some block between them overlaps both, since lifetimes are intervals, and keeps them apart.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        begin = min((span.first for span in spans), default=0)
        self._end = max((span.last for span in spans), default=0) + 1
        self._begins = [begin]  # of stretches of steps with one topmost block, in order
        self._tops: list[int | None] = [None]

    def raise_by(self, number: int) -> list[int]:
        """Lay a block on top of what is there; out come the blocks that it must lie above."""
        begin, end = self._spans[number].first, self._spans[number].last + 1
        low, high = bisect_right(self._begins, begin) - 1, bisect_left(self._begins, end)
        below = self._below(low, high, begin, end)
        stretches: list[tuple[int, int | None]] = [(begin, number)]
        if self._begins[low] < begin:
            stretches.insert(0, (self._begins[low], self._tops[low]))
        if self._end_of(high - 1) > end:
            stretches.append((end, self._tops[high - 1]))
        self._begins[low:high] = [begin for begin, _ in stretches]
        self._tops[low:high] = [top for _, top in stretches]
        return below

    def peaks(self) -> list[int]:
        """The blocks that the end of the arena must lie above."""
        return self._below(0, len(self._begins), self._begins[0], self._end)

    def _below(self, low: int, high: int, begin: int, end: int) -> list[int]:
        """The topmost blocks of some stretches that nothing hides in any step from `begin` to `end`."""
        below = []
        for stretch in range(low, high):
            top = self._tops[stretch]
            if top is not None:
                span = self._spans[top]
                seen_from, seen_to = max(self._begins[stretch], begin), min(self._end_of(stretch), end)
                if seen_from == max(span.first, begin) and seen_to == min(span.last + 1, end):
                    below.append(top)
        return below

    def _end_of(self, stretch: int) -> int:
        return self._begins[stretch + 1] if stretch + 1 < len(self._begins) else self._end


class Typical:
    """Numbers for sizes that are open, to weigh one against another."""

    _OPEN = 128  # rows, tokens: decides only what lies beside what; larger sizes than this waste less than smaller ones

    def __init__(self, dims: DimBuilder) -> None:
        self._dims = dims
        self._known: dict[Sym, int] = {}

    def __call__(self, dim: Dim) -> int:
        if not isinstance(dim, Sym):
            return dim
        if dim not in self._known:
            op = self._dims.ops[dim.id]
            try:
                self._known[dim] = self._OPEN if op.op in READS else apply(op.op, *map(self, op.args))
            except DimError:
                self._known[dim] = self._OPEN
        return self._known[dim]
