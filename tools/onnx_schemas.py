"""The operator schemas of the installed `onnx` -> the table that models are imported by.

`python tools/onnx_schemas.py` writes it anew; a test compares the two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import onnx

from tierup.frontends.onnx.attributes import attribute_value
from tierup.frontends.onnx.schema_table import FormalRow, SchemaRow, Table

TABLE = Path(__file__).parents[1] / "src/tierup/frontends/onnx/schemas.json"
DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")


class _Types:
    """Sets of type names, each once, numbered as they come."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[str, ...], int] = {}

    def number(self, names: Any) -> int:
        return self.numbers.setdefault(tuple(sorted(names)), len(self.numbers))


def table() -> Table:
    """What the installed `onnx` says."""
    types, ops = _Types(), {domain: dict[str, list[SchemaRow]]() for domain in DOMAINS}
    known = [schema for schema in onnx.defs.get_all_schemas_with_history() if schema.domain in DOMAINS]
    for schema in sorted(known, key=lambda schema: (schema.domain, schema.name, schema.since_version)):
        ops[schema.domain].setdefault(schema.name, []).append(_row(schema, types))
    packed = {
        domain: {name: msgspec.Raw(msgspec.json.encode(rows)) for name, rows in found.items()}
        for domain, found in ops.items()
    }
    return Table(onnx.defs.onnx_opset_version(), list(types.numbers), packed)


def _row(schema: Any, types: _Types) -> SchemaRow:
    option = onnx.defs.OpSchema.FormalParameterOption
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}

    def formal(parameter: Any) -> FormalRow:
        variable = parameter.type_str if parameter.type_str in allowed else ""
        names = allowed.get(parameter.type_str) or [parameter.type_str]
        return FormalRow(parameter.name, variable, types.number(names), parameter.option == option.Single)

    last = schema.inputs[-1] if schema.inputs else None
    variadic = last is not None and last.option == option.Variadic
    attributes = dict(sorted(schema.attributes.items()))
    return SchemaRow(
        version=schema.since_version,
        deprecated=schema.deprecated,
        inputs=(schema.min_input, schema.max_input),
        outputs=(schema.min_output, schema.max_output),
        required=tuple(key for key, a in attributes.items() if a.required),
        defaults={
            key: attribute_value(a.default_value, None, schema.name)  # type: ignore[misc]  # none is a tensor
            for key, a in attributes.items()
            if a.default_value.type
        },
        kinds={key: int(a.type.value) for key, a in attributes.items()},
        formals=tuple(formal(p) for p in (schema.inputs[:-1] if variadic else schema.inputs)),
        variadic=formal(last) if variadic else None,
        homogeneous=bool(variadic and last.is_homogeneous),
    )


def text(found: Table) -> bytes:
    """One line for each op, so that changes can be read."""
    lines = [b'{"opset":%d,"types":' % found.opset, msgspec.json.encode(found.types), b',"ops":{']
    for number, (domain, ops) in enumerate(found.ops.items()):
        rows = b",\n".join(msgspec.json.encode(name) + b":" + bytes(row) for name, row in ops.items())
        lines.append((b"," if number else b"") + msgspec.json.encode(domain) + b":{\n" + rows + b"}")
    return b"\n".join(lines) + b"}}\n"


if __name__ == "__main__":
    TABLE.write_bytes(text(table()))
