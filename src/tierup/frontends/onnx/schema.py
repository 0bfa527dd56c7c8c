"""What ONNX says an operator looks like: arity, attributes, type constraints, by domain, name and opset.

Schemas come from a table (`schema_table.py`); ops of other domains state a `Signature` in their row of the op table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from msgspec import Struct, field

from tierup.errors import ModelError, UnsupportedError
from tierup.frontends.onnx.schema_table import FormalRow, row_of, table
from tierup.ir.graph import Attr
from tierup.ir.infer import InferError
from tierup.ir.ops import lookup
from tierup.ir.types import DType, MapType, OptionalType, SequenceType, TensorType, Type

DOMAINS = {
    "": "onnx",
    "ai.onnx": "onnx",
    "ai.onnx.ml": "ml",
    "ai.onnx.preview.training": "training",
    "ai.onnx.preview": "preview",
    "com.microsoft": "ms",
}
_ONNX_DOMAINS = {"onnx": "", "ml": "ai.onnx.ml", "training": "ai.onnx.preview.training", "preview": "ai.onnx.preview"}

_ONNX_NAMES = {
    DType.F32: "float", DType.F64: "double", DType.F16: "float16", DType.BF16: "bfloat16", DType.STR: "string",
    DType.BOOL: "bool", DType.C64: "complex64", DType.C128: "complex128", DType.F8E4M3FN: "float8e4m3fn",
    DType.F8E4M3FNUZ: "float8e4m3fnuz", DType.F8E5M2: "float8e5m2", DType.F8E5M2FNUZ: "float8e5m2fnuz",
    DType.F8E8M0: "float8e8m0", DType.F4E2M1: "float4e2m1", DType.F6E2M3: "float6e2m3", DType.F6E3M2: "float6e3m2",
    DType.U8: "uint8", DType.I8: "int8", DType.U16: "uint16", DType.I16: "int16", DType.U32: "uint32",
    DType.I32: "int32", DType.U64: "uint64", DType.I64: "int64", DType.U4: "uint4", DType.I4: "int4",
    DType.U2: "uint2", DType.I2: "int2",
}  # fmt: skip


class Formal(Struct, frozen=True):
    """One formal input: the type variable that it binds (empty: none) and the types that it takes."""

    name: str
    variable: str
    allowed: frozenset[str]
    required: bool


class Schema(Struct, frozen=True):
    """An operator's contract in one opset."""

    op: str
    version: int
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    required: frozenset[str]
    defaults: Mapping[str, Attr]
    kinds: Mapping[str, int] | None  # attribute name -> AttributeProto type; None where any attribute type goes
    formals: tuple[Formal, ...] = ()
    variadic: Formal | None = None
    homogeneous: bool = True
    extra: frozenset[str] = field(default_factory=frozenset)


@cache
def find_schema(domain: str, name: str, opset: int) -> Schema:
    """The schema in force; UnsupportedError where there is no such op."""
    prefix = DOMAINS.get(domain)
    op = f"{prefix}.{name}"
    row = lookup(op) if prefix else None
    if row is None:
        raise UnsupportedError(f"operator {name} of domain '{domain or 'ai.onnx'}' is not known to Tierup")
    if row.signature is not None:
        signature = row.signature
        return Schema(
            op=op,
            version=1,
            inputs=signature.inputs,
            outputs=signature.outputs,
            required=frozenset(signature.required),
            defaults=signature.defaults,
            kinds=None,
            extra=frozenset(signature.optional),
        )
    return _from_onnx(op, _ONNX_DOMAINS[str(prefix)], name, opset)


def _from_onnx(op: str, domain: str, name: str, opset: int) -> Schema:
    row = row_of(domain, name, opset)
    if row is None:
        raise UnsupportedError(f"operator {name} does not exist in opset {opset} of '{domain or 'ai.onnx'}'")
    if row.deprecated:
        raise UnsupportedError(f"operator {name} was withdrawn in opset {row.version} of ONNX")
    return Schema(
        op=op,
        version=row.version,
        inputs=row.inputs,
        outputs=row.outputs,
        required=frozenset(row.required),
        defaults=row.defaults,
        kinds=row.kinds,
        formals=tuple(map(_formal, row.formals)),
        variadic=None if row.variadic is None else _formal(row.variadic),
        homogeneous=row.homogeneous,
    )


def _formal(row: FormalRow) -> Formal:
    return Formal(row.name, row.variable, frozenset(table().types[row.types]), row.required)


def check_arity(schema: Schema, given: Sequence[object], wanted: int) -> None:
    """Inputs (None where left out) and number of outputs against the schema; ModelError says what is wrong."""
    least, most = schema.inputs
    if not least <= len(given) <= most:
        raise ModelError(f"takes {_range(least, most)} inputs, but {len(given)} are given")
    for index, formal in enumerate(schema.formals):
        if formal.required and (index >= len(given) or given[index] is None):
            raise ModelError(f"needs its input '{formal.name}', which is left out")
    least, most = schema.outputs
    if not wanted <= most:
        raise ModelError(f"has {_range(least, most)} outputs, but {wanted} are asked for")


def _range(least: int, most: int) -> str:
    if most > 1_000_000:
        return f"{least} or more"
    return str(least) if least == most else f"{least} to {most}"


def check_types(schema: Schema, types: Sequence[Type | None]) -> None:
    """Input types against the schema's constraints; InferError names the input."""
    bound: dict[str, tuple[str, str]] = {}
    for index, type in enumerate(types):
        formal = schema.formals[index] if index < len(schema.formals) else schema.variadic
        if formal is None or type is None:
            continue
        text = _formal_type(type)
        if text not in formal.allowed:
            raise InferError(f"input '{formal.name}' cannot be {text}")
        if formal.variable and (formal is not schema.variadic or schema.homogeneous):
            first, known = bound.setdefault(formal.variable, (formal.name, text))
            if known != text:
                raise InferError(f"inputs '{first}' and '{formal.name}' must have one type, but are {known} and {text}")


def _formal_type(type: Type) -> str:
    """The type as schemas write it: those of maps name what they lead to, which is a tensor everywhere else."""
    if isinstance(type, MapType) and isinstance(type.value, TensorType):
        return f"map({_ONNX_NAMES[type.key]}, {_ONNX_NAMES[type.value.dtype]})"
    return onnx_type(type)


def onnx_type(type: Type) -> str:
    """The type as ONNX writes it."""
    match type:
        case TensorType(dtype, _):
            return f"tensor({_ONNX_NAMES[dtype]})"
        case SequenceType(elem):
            return f"seq({onnx_type(elem)})"
        case OptionalType(elem):
            return f"optional({onnx_type(elem)})"
        case MapType(key, value):
            return f"map({_ONNX_NAMES[key]}, {onnx_type(value)})"
