"""Runs a kernel alone: a case at given sizes, memory of its own around drawn inputs, and calls of the machine code.

Every buffer lies between zones that are looked at afterwards, so that a write outside shows; the zones, and what is not
written yet, hold NaN, so that a read outside shows in the results. Calls pass what the run time passes: pointers to
first elements, the sizes, scratch, and the range of grid steps, whole or in the pieces that threads would take.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
from collections.abc import Container, Mapping, Sequence
from functools import cache, cached_property
from itertools import pairwise

import numpy as np

from tierup.adapt.case import Case, value_of, values_written
from tierup.ir.dims import DimError, evaluate
from tierup.ir.graph import Node, ValueId
from tierup.ir.types import Array, Dim, DType, Shape, Sym, TensorType
from tierup.lower.kernel import Kernel, Panels
from tierup.plan.regions import RECURRENCES
from tierup.plan.spaces import BITS
from tierup.runtime.constants import pack_panels

# Tables of many megabytes are compared, too: NumPy would make as many bools first.
_COMPARE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_MEMCMP = _COMPARE(("memcmp", ctypes.CDLL(None)))
_KERNEL = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
)
_ALIGNMENT = 64  # what the run time gives values in its arena and packed constants
_ZONE_BYTES = 4096
_TABLE_ELEMS, _END_ELEMS = 1 << 19, 1 << 15
_ZONE, _UNWRITTEN = 0xFF, 0xA5  # NaN as floats; where no NaN is, what is no bool and no likely integer


class Unfit(ValueError):
    """Numbers for open sizes under which a region's shapes do not agree."""


class Sized:
    """A case at numbers for its open sizes. Unfit if no call could have these."""

    def __init__(self, case: Case, open_sizes: Sequence[int]) -> None:
        self.case, self.open_sizes = case, tuple(open_sizes)
        try:
            self._numbers = evaluate(case.graph.dims, lambda op, value, index: self.open_sizes[index])
        except DimError as error:
            raise Unfit(str(error)) from error
        self._shapes = [self._at_sizes(shape) for shape in case.shapes]
        if any(self.number(a) != self.number(b) for a, b in case.assumed):
            raise Unfit("sizes that are taken to be equal are not")
        self._sizes = {value: tuple(map(self.number, sizes)) for value, sizes in case.known}
        self._sizes.update(
            (value, tuple(case.weights[digest].reshape(-1).tolist())) for value, digest in case.graph.weights
        )
        for node in case.graph.nodes:
            self._check(node)

    def number(self, dim: Dim) -> int:
        return self._numbers[dim.id] if isinstance(dim, Sym) else dim

    def shape(self, value: ValueId) -> tuple[int, ...]:
        return self._shapes[value]

    def dtype(self, value: ValueId) -> DType:
        type = self.case.graph.type(value)
        assert isinstance(type, TensorType)
        return type.dtype

    def _at_sizes(self, shape: Shape) -> tuple[int, ...]:
        numbers = self._numbers
        found = tuple([numbers[dim.id] if isinstance(dim, Sym) else dim for dim in shape])
        if found and min(found) < 0:
            raise Unfit(f"a size would be {min(found)}")
        return found

    def _check(self, node: Node) -> None:
        """Where sizes are open, types do not say whether they agree."""
        shapes = [self.shape(value) for value in node.inputs if value is not None]
        result, *_ = (self.shape(value) for value in node.outputs if value is not None)
        if node.op == "core.reshape":
            fits = math.prod(shapes[0]) == math.prod(result)
        elif node.op == "core.broadcast":
            fits = _broadcast([shapes[0], result]) == result
        elif node.op in ("core.matmul", "core.matmul_blocks"):
            fits = shapes[0][-1] == shapes[1][-2]
        elif node.op == "core.matmul_scaled":
            fits = shapes[0][-1] == shapes[1][0] == shapes[2][0]
        elif node.op == "core.slice":
            fits = self._inside(node, shapes[0])
        elif node.op in RECURRENCES:
            fits = _recurs(node, shapes)
        elif node.op in _BROADCASTING:
            fits = _broadcast(shapes) == result
        else:
            fits = True
        if not fits:
            raise Unfit(f"{node.label} gets {shapes} for {list(result)}")

    def _inside(self, node: Node, shape: tuple[int, ...]) -> bool:
        """Whether a slice lies inside what it is cut from."""
        starts, ends = (self._sizes.get(value) for value in node.inputs[1:] if value is not None)
        if starts is None or ends is None:
            return True
        rows = zip(node.attrs["axes"], node.attrs["steps"], starts, ends, strict=True)
        return all(
            0 <= start <= shape[axis] and (0 if step > 0 else -1) <= end <= shape[axis]
            for axis, step, start, end in rows
        )

    def bytes_of(self, value: ValueId) -> int:
        return math.prod(self.shape(value)) * self.dtype(value).numpy.itemsize

    def content(self, value: ValueId) -> tuple[int, ...] | None:
        """The elements of a small integer value, where sizes say what they are."""
        return self._sizes.get(value)

    def known_inputs(self) -> dict[ValueId, Array]:
        """The inputs that hold sizes, and the open sizes themselves."""
        found = {
            value: np.array(list(map(self.number, sizes)), self.dtype(value).numpy).reshape(self.shape(value))
            for value, sizes in self.case.known
        }
        found[self.case.graph.inputs[-1]] = np.array(self.open_sizes, np.int64)
        return found

    def uniform_inputs(self) -> dict[ValueId, Array]:
        """The inputs that hold one number, since the kernels rely on that."""
        return {
            value: np.full(self.shape(value), number).astype(self.dtype(value).numpy)
            for value, number in self.case.uniform
        }

    def steps(self, kernel: Kernel) -> int:
        """How many steps a kernel's grid has: what is divided among threads."""
        return math.prod(-(-self.number(extent) // step) for extent, step in kernel.steps)

    @cached_property
    def ends(self) -> dict[ValueId, int]:
        """Large tables that rows are looked up in, and how many rows at either end are drawn and found. Those between
        are zeros, whose memory is hardly ever touched."""
        graph = self.case.graph
        others = {value for node in graph.nodes for value in node.inputs[_looks_up_rows(node) :]}
        tables = {node.inputs[0] for node in graph.nodes if _looks_up_rows(node)} - others - set(graph.outputs)
        found: dict[ValueId, int] = {}
        for value in tables.intersection(graph.inputs):
            assert value is not None
            (count, *row), elements = self.shape(value), math.prod(self.shape(value))
            rows = max(_END_ELEMS // max(math.prod(row), 1), 1)
            if elements > _TABLE_ELEMS and 2 * rows < count:
                found[value] = rows
        return found

    @cached_property
    def elements(self) -> int:
        """The elements of all values together: what an evaluation costs."""
        return sum(map(math.prod, self._shapes))


def _looks_up_rows(node: Node) -> bool:
    return node.op == "core.gather" and node.attrs["axis"] == 0


_BROADCASTING = frozenset(
    f"core.{name}"
    for name in ("add", "sub", "mul", "div", "min", "max", "and", "or", "xor", "eq", "lt", "le", "select", "pow", "mod")
)


def _recurs(node: Node, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether gates, weights, extras, states and lengths of a recurrence agree."""
    (_, batch, columns), (hidden, width), *between, (lengths,) = shapes
    states, parts = (
        [shape for shape in between if len(shape) == 2],
        {"core.lstm": (0, 3 * hidden)}.get(node.op, (hidden,)),
    )
    extras = [shape[0] for shape in between if len(shape) == 1]
    return (
        columns == width == RECURRENCES[node.op] * hidden
        and all(shape == (batch, hidden) for shape in states)
        and all(size in parts for size in extras)
        and lengths in (0, batch)
    )


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def overwrites(sized: Sized) -> dict[ValueId, ValueId]:
    """The results that the run time may write over an input, as it decides it, and those inputs."""
    shared: dict[ValueId, ValueId] = {}
    if len(sized.case.kernels) > 1:
        return shared
    (kernel,) = sized.case.kernels
    for result in values_written([kernel]):
        for source in kernel.replaces(result):
            # Memory that the kernel reads under two names may be read otherwise under the second.
            alone = kernel.buffers.count(source) == 1 and source not in shared.values()
            if alone and sized.bytes_of(source) == sized.bytes_of(result):
                shared.setdefault(result, source)
    return shared


class _Area:
    """Bytes on a 64-byte border, or `shift` bytes behind one, with a zone on either side; `content` lies between. With
    `ends`, it is zero but for so many bytes at either end."""

    def __init__(self, count: int, shift: int = 0, content: Array | None = None, ends: int | None = None) -> None:
        size = count + 2 * _ZONE_BYTES + _ALIGNMENT + shift
        raw = np.empty(size, np.uint8) if ends is None else np.zeros(size, np.uint8)
        begin = _ZONE_BYTES + -(raw.ctypes.data + _ZONE_BYTES) % _ALIGNMENT + shift
        self._before, self.bytes = raw[:begin], raw[begin : begin + count]
        self._behind = raw[begin + count :]
        self._before[:], self._behind[:] = _ZONE, _ZONE
        for part in (slice(None),) if ends is None else (slice(ends), slice(count - ends, None)):
            self.bytes[part] = _ZONE if content is None else content[part]
        self.address = raw.ctypes.data + begin

    def holds(self, content: Array) -> bool:
        """Whether these bytes, as many, lie there."""
        return bool(_MEMCMP(self.address, content.ctypes.data, content.size) == 0)

    def trespass(self) -> str | None:
        """Where something was written outside."""
        for name, zone in (("before", self._before), ("behind", self._behind)):
            if (zone != _ZONE).any():
                return name
        return None


Held = tuple[_Area, Array]  # an input in memory, and its bytes as they should stay


@cache
def _own_memory(process: int) -> int:
    """A descriptor that says how much memory this process has; it stays open, since every call is asked about twice."""
    return os.open(f"/proc/{process}/statm", os.O_RDONLY | os.O_CLOEXEC)


def _mapped_bytes() -> int:
    """How much memory this process has, touched or not."""
    return int(os.pread(_own_memory(os.getpid()), 64, 0).split()[0]) * resource.getpagesize()


class _Call:
    """What one kernel is called with."""

    def __init__(self, kernel: Kernel, sized: Sized, address: int, areas: Sequence[_Area]) -> None:
        self.steps = sized.steps(kernel)
        self.scratch = _Area(max(sized.number(kernel.scratch_bytes), 0))
        self._function = _KERNEL(address)
        self._pointers = (ctypes.c_void_p * max(len(areas), 1))(*(area.address for area in areas))
        sizes = list(map(sized.number, kernel.sizes))
        rounds = None if kernel.rounds is None else range(max(sized.number(kernel.rounds), 1))
        each = [sizes] if rounds is None else [[number, number + 1, *sizes] for number in rounds]
        self._sizes = [(ctypes.c_int64 * max(len(numbers), 1))(*numbers) for numbers in each]

    def run(self, pieces: Sequence[tuple[int, int]]) -> int:
        for sizes in self._sizes:
            for begin, end in pieces:
                status: int = self._function(self._pointers, sizes, self.scratch.address, begin, end)
                if status != 0:
                    return status
        return 0


class Trial:
    """The kernels of a case with memory for one call. `run` may be called any number of times: unless a result lies
    where an input does (`in_place`), inputs stay as they are. `shift` moves what is read from its 64-byte border by so
    many elements and a byte. `packed` are panels that another trial has packed of the same arrays.
    """

    def __init__(
        self,
        sized: Sized,
        addresses: Sequence[int],
        inputs: Mapping[ValueId, Array],
        *,
        shift: int = 0,
        in_place: bool = False,
        packed: Mapping[Panels, Held] | None = None,
    ) -> None:
        self.sized, self._case = sized, sized.case
        self.taken_bytes = 0
        """What the last run took from the system and did not give back."""
        self._held: dict[ValueId | Panels, Held] = {}
        for panels, held in (packed or {}).items():
            self._held[panels] = held
        for buffer in (buffer for kernel in self._case.kernels for buffer in kernel.buffers):
            if value_of(buffer) in inputs and buffer not in self._held:
                self._held[buffer] = self._place(buffer, inputs[value_of(buffer)], shift)
        self._shared = overwrites(sized) if in_place else {}
        self._results = {value: self._room(value) for value in values_written(self._case.kernels)}
        self._calls = [
            _Call(kernel, sized, address, [self._area(buffer) for buffer in kernel.buffers])
            for kernel, address in zip(self._case.kernels, addresses, strict=True)
        ]

    @property
    def steps(self) -> int:
        """How many steps the largest grid has."""
        return max(call.steps for call in self._calls)

    def packed(self, values: Container[ValueId]) -> dict[Panels, Held]:
        """The panels of these values."""
        return {
            buffer: held for buffer, held in self._held.items() if isinstance(buffer, Panels) and buffer.value in values
        }

    def _place(self, buffer: ValueId | Panels, array: Array, shift: int) -> Held:
        """The run time packs panels on a border."""
        if isinstance(buffer, Panels):
            array, shift = pack_panels(array, buffer.width, form=buffer.form), 0
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        rows = self.sized.ends.get(buffer) if isinstance(buffer, ValueId) else None
        ends = None if rows is None else rows * array[0].nbytes
        off = shift * array.dtype.itemsize + 1 if shift else 0  # what lies in a file may begin anywhere
        return _Area(flat.size, off, flat, ends), flat

    def _room(self, value: ValueId) -> _Area:
        return self._held[self._shared[value]][0] if value in self._shared else _Area(self.sized.bytes_of(value))

    def _area(self, buffer: ValueId | Panels) -> _Area:
        return self._held[buffer][0] if buffer in self._held else self._results[buffer]  # type: ignore[index]

    def clear(self) -> None:
        """Forget results; what is not written afterwards will show. Kernels may not rely on what lies in scratch."""
        for value, area in self._results.items():
            if value not in self._shared:
                area.bytes[:] = _ZONE if self.sized.dtype(value).is_float else _UNWRITTEN
        for call in self._calls:
            call.scratch.bytes[:] = _ZONE

    def run(self, cuts: Sequence[int] = (), *, backwards: bool = False) -> int:
        """One call of each kernel over its whole range, or one for each piece between `cuts`; a status that is not 0
        ends it."""
        before, status = _mapped_bytes(), 0
        for call in self._calls:
            borders = [0, *(cut for cut in cuts if cut < call.steps), call.steps]
            pieces = [(begin, end) for begin, end in pairwise(borders) if begin < end]
            status = call.run(pieces[::-1] if backwards else pieces)
            if status != 0:
                break
        self.taken_bytes = max(0, _mapped_bytes() - before)
        return status

    def results(self) -> list[Array]:
        """What was written, in the order of the graph's outputs."""
        return [self._result(value) for value in self._case.graph.outputs]

    def _result(self, value: ValueId) -> Array:
        return self._results[value].bytes.view(self.sized.dtype(value).numpy).reshape(self.sized.shape(value)).copy()

    def unwritten_bools(self) -> bool:
        """Whether a byte of a bool result is neither true nor false."""
        bools = (area.bytes for value, area in self._results.items() if self.sized.dtype(value) is DType.BOOL)
        return any((content > 1).any() for content in bools)

    def unwritten_floats(self) -> bool:
        """Whether elements are still as `clear` left them: a NaN that no kernel computes, but integers may hold."""
        any_bits = {value for node in self._case.graph.nodes if node.op == BITS for value in node.outputs}
        for value, area in self._results.items():
            dtype = self.sized.dtype(value)
            if dtype in (DType.F32, DType.F64) and value not in (*self._shared, *any_bits) and area.bytes.size:
                words = area.bytes.view(f"u{dtype.numpy.itemsize}")
                if words.max() == np.iinfo(words.dtype).max:
                    return True
        return False

    def trespass(self) -> str | None:
        """What was written that should not have been, as a sentence; None if nothing was."""
        names = self._names()
        areas = {id(area): area for area in (*(held[0] for held in self._held.values()), *self._results.values())}
        for number, area in areas.items():
            side = area.trespass()
            if side is not None:
                return f"it writes {side} buffer '{names[number]}'"
        for call in self._calls:
            side = call.scratch.trespass()
            if side is not None:
                return f"it writes {side} its scratch of {call.scratch.bytes.size} bytes"
        for buffer, (area, before) in self._held.items():
            if buffer not in self._shared.values() and not area.holds(before):
                return f"it writes to buffer '{names[id(area)]}', which it may only read"
        return None

    def _names(self) -> dict[int, str]:
        """What areas are called in messages."""
        found: dict[int, str] = {}
        for kernel in self._case.kernels:
            passed = [buffer.name for buffer in kernel.program.buffers if buffer.mode != "scratch"]
            found.update((id(self._area(b)), name) for name, b in zip(passed, kernel.buffers, strict=True))
        return found
