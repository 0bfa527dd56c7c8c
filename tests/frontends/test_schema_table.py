"""The table of ONNX's operators is what the `onnx` package says."""

from __future__ import annotations

from tools.onnx_schemas import TABLE, table, text

from tierup.frontends.onnx.schema import find_schema


def test_the_table_is_what_onnx_says() -> None:
    assert TABLE.read_bytes() == text(table()), "run `python tools/onnx_schemas.py`"


def test_the_row_in_force() -> None:
    assert find_schema("", "Relu", 13).version == 13
    assert find_schema("", "Relu", 12).version == 6
    assert find_schema("", "LeakyRelu", 16).defaults == {"alpha": 0.009999999776482582}  # 0.01 as a float32
    assert find_schema("", "Concat", 13).variadic is not None
