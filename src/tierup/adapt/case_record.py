"""A case as plain data and back: what a worker is sent, and what tells whether a kernel was proved before."""

from __future__ import annotations

import math
import re
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from tierup.adapt.case import CONSTANT_LIMIT_ELEMS, Case, sizes_of, value_of, values_read, values_written
from tierup.ir.dims import READS
from tierup.ir.graph import Graph, ValueId, Weights, weight_digest
from tierup.ir.parse import parse_graph
from tierup.ir.text import print_graph
from tierup.ir.types import Dim, DType, Sym, TensorType, dtype_from_code, dtype_from_numpy
from tierup.ir.verify import verify as verify_graph
from tierup.lower.checked import CHECKED
from tierup.lower.kernel import Kernel, Panels
from tierup.lower.tile import Buffer
from tierup.plan.packing import GROUPS, WIDENED, WINOGRAD, WORDS

Size = Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)] | Annotated[str, Meta(pattern=r"\Ad[0-9]{1,6}\Z")]
_Text = Annotated[str, Meta(max_length=4 << 20)]
_Value = Annotated[int, Meta(ge=0)]


class ConstantRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A constant inside the code."""

    dtype: int
    shape: Annotated[tuple[Annotated[int, Meta(ge=0, le=CONSTANT_LIMIT_ELEMS)], ...], Meta(max_length=16)]
    data: Annotated[bytes, Meta(max_length=16 * CONSTANT_LIMIT_ELEMS)]


class BufferRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value that is passed to a kernel; in panels of `width` columns and this form unless the width is 0."""

    value: _Value
    width: Annotated[int, Meta(ge=0, le=1 << 16)] = 0
    form: Annotated[str, Meta(max_length=40)] = ""


class CallRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel: its tile program as text, and what a call passes to it, sizes as numbers or names of dims."""

    program: _Text
    buffers: Annotated[tuple[BufferRecord, ...], Meta(max_length=1024)]
    sizes: Annotated[tuple[Size, ...], Meta(max_length=1024)]
    steps: Annotated[tuple[tuple[Size, Annotated[int, Meta(ge=1, le=1 << 20)]], ...], Meta(max_length=16)]
    grain: Size
    scratch_bytes: Size
    rounds: Size | None = None


class CaseRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A case. Equal regions under equal recipes give equal records."""

    graph: _Text
    constants: Annotated[tuple[ConstantRecord, ...], Meta(max_length=4096)]
    calls: Annotated[tuple[CallRecord, ...], Meta(min_length=1, max_length=4096)]
    known: Annotated[tuple[tuple[_Value, tuple[Size, ...]], ...], Meta(max_length=4096)] = ()
    assumed: Annotated[tuple[tuple[Size, Size], ...], Meta(max_length=65_536)] = ()
    fixed: Annotated[tuple[_Value, ...], Meta(max_length=4096)] = ()
    uniform: Annotated[tuple[tuple[_Value, float], ...], Meta(max_length=4096)] = ()


def record_of(case: Case) -> CaseRecord:
    """The case as data."""
    return CaseRecord(
        print_graph(case.graph, names=False),
        tuple(_constant_record(case.weights, digest) for _, digest in case.graph.weights),
        tuple(map(_call_record, case.kernels)),
        tuple((value, tuple(map(_size, sizes))) for value, sizes in case.known),
        tuple((_size(a), _size(b)) for a, b in case.assumed),
        case.fixed,
        case.uniform,
    )


def _constant_record(weights: Weights, digest: str) -> ConstantRecord:
    array = weights[digest]
    dtype = dtype_from_numpy(array.dtype)
    assert dtype is not None
    return ConstantRecord(dtype.code, tuple(array.shape), np.ascontiguousarray(array).tobytes())


def _call_record(kernel: Kernel) -> CallRecord:
    buffers = (
        BufferRecord(b.value, b.width, b.form) if isinstance(b, Panels) else BufferRecord(b) for b in kernel.buffers
    )
    return CallRecord(
        kernel.program.text,
        tuple(buffers),
        tuple(map(_size, kernel.sizes)),
        tuple((_size(extent), step) for extent, step in kernel.steps),
        _size(kernel.grain),
        _size(kernel.scratch_bytes),
        None if kernel.rounds is None else _size(kernel.rounds),
    )


def _size(dim: Dim) -> int | str:
    return repr(dim) if isinstance(dim, Sym) else dim


def case_of(record: CaseRecord) -> Case:
    """The case that a record describes. ValueError, or an error of the graph's or program's verifier, if it is none."""
    weights = Weights()
    for constant in record.constants:
        dtype = dtype_from_code(constant.dtype)
        if dtype is None or dtype is DType.STR:
            raise ValueError(f"a constant has dtype number {constant.dtype}")
        array = np.frombuffer(constant.data, dtype.numpy).reshape(constant.shape)
        weights.add(array, weight_digest(array))
    graph = parse_graph(record.graph)
    verify_graph(graph, weights)
    known = tuple((value, tuple(map(_dim, sizes))) for value, sizes in record.known)
    assumed = tuple((_dim(a), _dim(b)) for a, b in record.assumed)
    case = Case(graph, weights, tuple(map(_kernel, record.calls)), known, assumed, record.fixed, record.uniform)
    _check_sizes(case)
    _check_uniform(case)
    for kernel in case.kernels:
        _check_buffers(case, kernel)
    return case


def _kernel(record: CallRecord) -> Kernel:
    return Kernel(
        CHECKED.program(record.program),
        tuple(Panels(b.value, b.width, b.form) if b.width else b.value for b in record.buffers),
        tuple(map(_dim, record.sizes)),
        tuple((_dim(extent), step) for extent, step in record.steps),
        _dim(record.grain),
        _dim(record.scratch_bytes),
        None if record.rounds is None else _dim(record.rounds),
    )


_NAME = re.compile(r"d([0-9]+)", re.ASCII)


def _dim(size: int | str) -> Dim:
    if isinstance(size, int):
        return size
    found = _NAME.fullmatch(size)
    if found is None:
        raise ValueError(f"'{size[:40]}' is no size")
    return Sym(int(found[1]))


def _check_sizes(case: Case) -> None:
    """Sizes exist, and are read from the vector alone."""
    graph = case.graph
    used = [dim for pair in case.assumed for dim in pair] + [dim for _, sizes in case.known for dim in sizes]
    used += [dim for kernel in case.kernels for dim in sizes_of(kernel)]
    if any(isinstance(dim, Sym) and dim.id >= len(graph.dims) for dim in used):
        raise ValueError("a size refers to an instruction that does not exist")
    if not graph.inputs or not _is_vector(graph):
        raise ValueError("the last input of a case must be the vector of its open sizes")
    places = range(case.open_sizes)
    reads = (op for op in graph.dims if op.op in READS)
    if any(op.op != "elem" or op.args[0] != graph.inputs[-1] or op.args[1] not in places for op in reads):
        raise ValueError("a size is read from something else than the vector of open sizes")
    for value, sizes in case.known:
        type = graph.type(value) if value in graph.inputs[:-1] else None
        if not isinstance(type, TensorType) or type.shape not in ((), (len(sizes),)) or type.dtype.is_float:
            raise ValueError(f"value %{value} cannot hold sizes")


def _check_uniform(case: Case) -> None:
    """What is one number in all elements are inputs of numbers."""
    for value, number in case.uniform:
        type = case.graph.type(value) if value in case.graph.inputs[:-1] else None
        if not isinstance(type, TensorType) or type.dtype is DType.STR or not math.isfinite(number):
            raise ValueError(f"value %{value} cannot be {number} everywhere")


def _check_buffers(case: Case, kernel: Kernel) -> None:
    """Every buffer is bound to a value that it can hold."""
    graph = case.graph
    passed = [buffer for buffer in kernel.program.buffers if buffer.mode != "scratch"]
    if len(passed) != len(kernel.buffers) or kernel.program.n_sizes != kernel.n_sizes:
        raise ValueError("a kernel must be passed one value for each buffer, and all its sizes")
    readable = {*graph.inputs[:-1], *values_written(case.kernels)}
    if set(values_written(case.kernels)) != set(graph.outputs) or not readable.issuperset(values_read(case.kernels)):
        raise ValueError("kernels read inputs and write outputs, and nothing else")
    for buffer, bound in zip(passed, kernel.buffers, strict=True):
        type = graph.type(value_of(bound)) if value_of(bound) in (*graph.inputs[:-1], *graph.outputs) else None
        if not isinstance(type, TensorType) or type.shape is None or type.dtype is DType.STR:
            raise ValueError(f"buffer '{buffer.name}' is bound to what is no tensor")
        if not _holds(buffer, bound, type):
            raise ValueError(f"buffer '{buffer.name}' has elements of another size than the value it is bound to")
        if isinstance(bound, Panels) and (buffer.mode != "in" or len(type.shape) != 2):
            raise ValueError(f"buffer '{buffer.name}' is bound to panels of what is no matrix")


def _holds(buffer: Buffer, bound: ValueId | Panels, type: TensorType) -> bool:
    """Whether a buffer has elements as large as its value's, or words of several of them that it reads."""
    form = bound.form if isinstance(bound, Panels) else ""
    if form in WORDS:
        rows = (type.shape or (0,))[0]
        return buffer.dtype is DType.I32 and isinstance(rows, int) and not rows % WORDS[form]
    if form == WIDENED:
        return buffer.dtype is DType.F32 and type.dtype in (DType.F16, DType.BF16)
    if form:
        return buffer.dtype is type.dtype and (form in GROUPS or form in WINOGRAD)
    size, own = type.dtype.numpy.itemsize, buffer.dtype.numpy.itemsize
    if size == own:
        return True
    columns = (type.shape or (0,))[-1]
    words = buffer.mode == "in" and buffer.dtype is DType.I32 and size < own
    return words and isinstance(columns, int) and columns * size % own == 0


def _is_vector(graph: Graph) -> bool:
    type = graph.type(graph.inputs[-1])
    return (
        isinstance(type, TensorType)
        and type.dtype is DType.I64
        and type.shape is not None
        and len(type.shape) == 1
        and isinstance(type.shape[0], int)
    )
