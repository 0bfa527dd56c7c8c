"""What a plan entry holds, as bounded typed records, and how plans become records and back.

Everything here can come from a damaged or foreign file. Decoding checks types; a file is read up to a limit, so that
nothing in it is longer. `StoredWeights` checks offsets and shapes against the files that they are for, and the native
program every number of a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from tierup.ir.facts import MOST, MOST_STRAYS, Aim, Fact
from tierup.ir.types import DType, MapType, OptionalType, SequenceType, Sym, TensorType, Type, dtype_from_code

if TYPE_CHECKING:  # a warm start needs neither graphs nor plans
    from tierup.ir.graph import Node
    from tierup.plan.program import Plan

MODEL, INLINE, ARRAYS = 0, -1, -2  # where a weight lies; external files count from 1


class TensorRecord(msgspec.Struct, array_like=True, frozen=True, tag="tensor"):
    """Dims below 0 are syms: -1 - id."""

    dtype: int
    dims: tuple[int, ...] | None


class SequenceRecord(msgspec.Struct, array_like=True, frozen=True, tag="sequence"):
    elem: TypeRecord


class OptionalRecord(msgspec.Struct, array_like=True, frozen=True, tag="optional"):
    elem: TypeRecord


class MapRecord(msgspec.Struct, array_like=True, frozen=True, tag="map"):
    key: int
    value: TypeRecord


TypeRecord = TensorRecord | SequenceRecord | OptionalRecord | MapRecord


class ValueRecord(msgspec.Struct, array_like=True, frozen=True):
    """An input or output as callers see it. `onnx_type` is the type in ONNX's words."""

    name: str
    type: TypeRecord
    shape: tuple[int | str | None, ...] | None
    onnx_type: str
    required: bool = True


class AboutRecord(msgspec.Struct, array_like=True, frozen=True):
    """What a report says of the model itself."""

    name: str
    ops: dict[str, int]
    weights_bytes: int
    inputs: tuple[ValueRecord, ...]
    outputs: tuple[ValueRecord, ...]


class FunctionRecord(msgspec.Struct, array_like=True, frozen=True):
    """A `plan.Function`; its numbers are checked by the native program."""

    name: str
    n_values: int
    n_dims: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dim_code: tuple[tuple[int, int, int, int, int], ...]
    steps: tuple[tuple[int, ...], ...]

    def native(self) -> tuple[object, ...]:
        """The form that the native program takes."""
        return (self.n_values, self.n_dims, self.inputs, self.outputs, self.dim_code, self.steps)


class CalloutRecord(msgspec.Struct, array_like=True, frozen=True):
    """A node as the text of a graph that has it alone; no text: the imported model answers the whole call."""

    text: str
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]


class KernelRecord(msgspec.Struct, array_like=True, frozen=True):
    """A slot's kernel: the digest of its key in the object cache, its image, so that one file is a warm start, and the
    digest of its region."""

    key: str
    image: bytes
    region: str = ""


class VariantRecord(msgspec.Struct, array_like=True, frozen=True):
    """A `plan.Variant`; its numbers are checked by the native program, and `kernel` when the plan is restored."""

    slot: int
    kernel: int
    first: int
    key: tuple[int, ...]
    range: int
    grain: int
    scratch: int


class KernelError(msgspec.Struct, array_like=True, frozen=True):
    """How far a kernel was from float64 in its proof, in units of eps · B: the largest error, the RMS error, and the
    baseline's RMS error. `narrowed` is the RMS error that comes of rounding to bf16, in units of B."""

    worst: float
    rms: float
    rms_baseline: float
    narrowed: float = 0.0


class PlanRecord(msgspec.Struct, array_like=True, frozen=True):
    """A `plan.Plan`. A constant is a digest, followed by its packing where it has one."""

    functions: tuple[FunctionRecord, ...]
    callouts: tuple[CalloutRecord, ...]
    constants: tuple[tuple[str | int, ...], ...]
    kernels: tuple[KernelRecord, ...]
    kernel_steps: int
    fallback_nodes: int
    all_dtypes: bool
    """Whether it handles types that are not NumPy's own."""
    signatures: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """The input shapes that have functions of their own."""
    proved: bool = False
    errors: tuple[tuple[int, KernelError], ...] = ()
    """What was measured when the kernels were proved, by slot."""
    refused: tuple[tuple[str, str], ...] = ()
    """Regions that the reference computes because their kernels were refused, and why."""
    slots: int = 0
    """As many kernels are the open ones of slots; those after them are variants'."""
    variants: tuple[VariantRecord, ...] = ()
    facts: Annotated[tuple[Fact, ...], Meta(max_length=MOST)] = ()
    """What some of the variants rely on."""
    strays: Annotated[tuple[tuple[tuple[int, ...], ...], ...], Meta(max_length=MOST_STRAYS)] = ()
    """Calls like these have functions of their own, since sizes differ in them that are taken to be equal."""

    @property
    def aim(self) -> Aim:
        """What it is made for."""
        return Aim(self.signatures, self.facts, self.strays)


class WeightRecord(msgspec.Struct, array_like=True, frozen=True):
    """Where an array is found: row-major in the file `where`, from `offset` on, in the shape `stored`.

    `axes` are the stored array's axes in the order of the array's own; empty where that is the same. Small arrays and
    strings lie in the record.
    """

    where: int
    offset: int
    dtype: int
    stored: tuple[int, ...]
    axes: tuple[int, ...] = ()
    data: bytes = b""
    strings: tuple[str, ...] = ()


class FileRecord(msgspec.Struct, array_like=True, frozen=True):
    """A file beside the model, or beside the entry, and what identifies its content."""

    name: str
    size_bytes: int
    fingerprint: str


class EntryRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that a warm start needs. `parts` is what the entry was made for."""

    about: AboutRecord
    plan: PlanRecord
    weights: dict[str, WeightRecord]
    parts: dict[str, str] = {}
    external: tuple[FileRecord, ...] = ()
    arrays: FileRecord | None = None


def type_record(type: Type) -> TypeRecord:
    """A type as a record."""
    match type:
        case TensorType(dtype, shape):
            dims = None if shape is None else tuple(-1 - dim.id if isinstance(dim, Sym) else dim for dim in shape)
            return TensorRecord(dtype.code, dims)
        case SequenceType(elem):
            return SequenceRecord(type_record(elem))
        case OptionalType(elem):
            return OptionalRecord(type_record(elem))
        case MapType(key, value):
            return MapRecord(key.code, type_record(value))


def type_of(record: TypeRecord) -> Type:
    """The type that a record describes; ValueError if there is none."""
    match record:
        case TensorRecord(code, dims):
            shape = None if dims is None else tuple(dim if dim >= 0 else Sym(-1 - dim) for dim in dims)
            return TensorType(known_dtype(code), shape)
        case SequenceRecord(elem):
            return SequenceType(type_of(elem))
        case OptionalRecord(elem):
            return OptionalType(type_of(elem))
        case MapRecord(key, value):
            return MapType(known_dtype(key), type_of(value))


def dtype_codes(record: TypeRecord) -> tuple[int, ...]:
    """The numbers of the dtypes that a type is made of."""
    match record:
        case TensorRecord(code, _):
            return (code,)
        case SequenceRecord(elem) | OptionalRecord(elem):
            return dtype_codes(elem)
        case MapRecord(key, value):
            return (key, *dtype_codes(value))


def known_dtype(code: int) -> DType:
    """The dtype with this number."""
    dtype = dtype_from_code(code)
    if dtype is None:
        raise ValueError(f"there is no dtype {code}")
    return dtype


def plan_record(
    plan: Plan,
    all_dtypes: bool,
    signatures: tuple[tuple[tuple[int, ...], ...], ...],
    refused: tuple[tuple[str, str], ...] = (),
) -> PlanRecord:
    """A plan as a record that has no kernels yet."""
    from tierup.plan.program import StepCode

    functions = (
        FunctionRecord(f.name, f.n_values, f.n_dims, f.inputs, f.outputs, f.dim_code, f.steps) for f in plan.functions
    )
    return PlanRecord(
        functions=tuple(functions),
        callouts=tuple(map(callout_record, plan.callouts)),
        constants=tuple((c,) if isinstance(c, str) else tuple(c) for c in plan.constants),
        kernels=(),
        kernel_steps=plan.count(StepCode.KERNEL),
        fallback_nodes=plan.fallback_nodes,
        all_dtypes=all_dtypes,
        signatures=signatures,
        refused=refused,
        slots=plan.slots,
        variants=variant_records(plan),
        facts=plan.facts,
        strays=plan.strays,
    )


def variant_records(plan: Plan) -> tuple[VariantRecord, ...]:
    """A plan's variants as records."""
    return tuple(VariantRecord(v.slot, v.kernel, v.first, v.key, v.range, v.grain, v.scratch) for v in plan.variants)


def callout_record(node: Node) -> CalloutRecord:
    """A node as a record. Its values are renumbered in the text, where they have to follow each other."""
    from tierup.ir.graph import Graph, Value
    from tierup.ir.text import print_graph
    from tierup.plan.program import BASELINE

    if node.op == BASELINE:
        return CalloutRecord("", node.inputs, node.outputs)
    used = dict.fromkeys(value for value in (*node.inputs, *node.outputs) if value is not None)
    numbers = {value: number for number, value in enumerate(used)}
    inputs, outputs = (
        tuple(None if value is None else numbers[value] for value in values) for values in (node.inputs, node.outputs)
    )
    values = (Value(TensorType(DType.F32, None)),) * len(numbers)
    alone = replace(node, inputs=inputs, outputs=outputs)
    given = tuple(dict.fromkeys(value for value in inputs if value is not None))
    return CalloutRecord(print_graph(Graph(given, (), (alone,), values)), node.inputs, node.outputs)


def node_of(record: CalloutRecord) -> Node:
    """The node that a record describes; ValueError if its text is none."""
    from tierup.ir.text import parse_graph

    (node,) = parse_graph(record.text).nodes
    return replace(node, inputs=record.inputs, outputs=record.outputs)
