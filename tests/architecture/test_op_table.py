"""The op table is complete: every op of every ONNX domain has a row, and every row can be computed."""

from __future__ import annotations

import onnx
import pytest

from tierup.frontends.onnx.schema import DOMAINS
from tierup.ir.ops import Kind, table
from tierup.reference.bind import resolve
from tierup.reference.control import CONTROL


def test_every_onnx_op_has_a_row() -> None:
    wanted = {
        f"{DOMAINS[schema.domain]}.{schema.name}"
        for schema in onnx.defs.get_all_schemas()
        if schema.domain in DOMAINS and not schema.deprecated
    }
    assert not sorted(wanted - table().keys())


# The com.microsoft ops that ONNX Runtime's optimisers and quantisers write into files.
MICROSOFT = (
    "Attention", "BiasGelu", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "EmbedLayerNormalization", "FastGelu",
    "FusedConv", "FusedGemm", "FusedMatMul", "Gelu", "GroupQueryAttention", "MatMulIntegerToFloat", "MatMulNBits",
    "MultiHeadAttention", "QAttention", "QLinearAdd", "QLinearAveragePool", "QLinearConcat",
    "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearMul", "QLinearSigmoid", "QLinearSoftmax", "QLinearWhere",
    "QuickGelu", "RotaryEmbedding", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization",
)  # fmt: skip


@pytest.mark.parametrize("op", MICROSOFT)
def test_microsoft_ops_of_real_exports_have_rows(op: str) -> None:
    assert f"ms.{op}" in table()


def test_every_row_is_whole() -> None:
    for name, row in table().items():
        assert row.name == name
        assert row.doc, f"{name} has no doc line"
        assert len(row.doc) < 300, f"the doc of {name} is not one line"
        if name not in CONTROL:
            assert callable(resolve(name)), name
        domain = name.split(".")[0]
        assert domain in {*DOMAINS.values(), "core"}
        if domain == "core":
            assert row.core, f"{name} does not say why it is core"


def test_control_ops_are_control() -> None:
    assert all(table()[name].kind is Kind.CONTROL for name in CONTROL)
