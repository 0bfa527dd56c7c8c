"""Drawn inputs: they change, stay valid, and are the same for a seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper
from tests.security.models import model, node, value

from tierup.bench import draw
from tierup.bench.draw import draw_sets, draw_traffic, index_bounds, is_quantised, write_sets
from tierup.errors import InputError
from tierup.frontends.onnx import load_onnx


def test_indices_are_bounded_by_the_smallest_table_that_they_reach() -> None:
    tables = [numpy_helper.from_array(np.zeros((rows, 3), np.float32), f"t{rows}") for rows in (7, 5)]
    proto = model(
        [
            node("Gather", ["t7", "ids"], ["a"], axis=0),
            node("Cast", ["ids"], ["small"], to=TensorProto.INT32),
            node("Gather", ["t5", "small"], ["b"], axis=0),
            node("Add", ["a", "b"], ["y"]),
            node("Identity", ["n"], ["z"]),
        ],
        [value("ids", ["k"], TensorProto.INT64), value("n", [1], TensorProto.INT64)],
        [value("y", ["k", 3]), value("z", [1], TensorProto.INT64)],
        tables,
    )
    assert index_bounds(load_onnx(proto.SerializeToString()).graph) == {"ids": 5}


def test_a_model_that_quantises_what_it_computes_is_one_and_one_with_small_weights_is_not() -> None:
    scale, small = (numpy_helper.from_array(a, n) for n, a in (("s", np.float32(0.1)), ("w", np.zeros(2, np.int8))))
    weights = model(
        [node("DequantizeLinear", ["w", "s"], ["v"]), node("Add", ["x", "v"], ["y"])], weights=[scale, small]
    )
    values = model(
        [node("QuantizeLinear", ["x", "s"], ["q"]), node("DequantizeLinear", ["q", "s"], ["y"])], weights=[scale]
    )
    found = [is_quantised(load_onnx(proto.SerializeToString()).graph) for proto in (weights, values)]
    assert found == [False, True]


def test_sets_differ_and_keep_types_shapes_and_given_inputs() -> None:
    base = {
        "x": np.zeros((2, 64), np.float16),
        "ids": np.ones((2, 64), np.int64),
        "attention_mask": np.ones((2, 64), np.int64),
        "count": np.ones(1, np.int64),
        "given": np.arange(3.0),
    }
    drawn = {"x", "ids", "attention_mask", "count"}
    sets = draw_sets(base, drawn, {"ids": 9}, 40, seed=1)
    for feeds in sets:
        assert {name: (a.dtype, a.shape) for name, a in feeds.items()} == {
            name: (a.dtype, a.shape) for name, a in base.items()
        }
        assert 0 <= feeds["ids"].min() <= feeds["ids"].max() < 9
        mask = feeds["attention_mask"]
        assert (np.diff(mask, axis=-1) <= 0).all()  # ones, then nothing but padding
        assert (mask.sum(-1) >= 48).all()
        np.testing.assert_array_equal(feeds["given"], base["given"])
        np.testing.assert_array_equal(feeds["count"], base["count"])
    assert len({feeds["x"].tobytes() for feeds in sets}) == 40
    masks = np.concatenate([feeds["attention_mask"] for feeds in sets])
    assert 0 < (masks.sum(-1) < 64).mean() < 0.5  # some rows are padded, most are not
    again = draw_sets(base, drawn, {"ids": 9}, 40, seed=1)
    assert all(np.array_equal(a[name], b[name]) for a, b in zip(sets, again, strict=True) for name in base)


def test_traffic_rotates_over_sets_of_each_shape() -> None:
    bases = [{"x": np.zeros((1, n), np.float32)} for n in (3, 5)]
    sets, order = draw_traffic(bases, [1, 0, 1, 1, 1, 0], {"x"}, {}, count=2, seed=0)
    assert order == [0, 1, 2, 0, 2, 3]
    assert [feeds["x"].shape[1] for feeds in sets] == [5, 3, 5, 3]


def test_traffic_takes_fewer_sets_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw, "MAX_TRAFFIC_BYTES", 50)
    bases = [{"x": np.zeros(10, np.float32)}]
    sets, order = draw_traffic(bases, [0, 0, 0], {"x"}, {}, count=8, seed=0)
    assert len(sets) == 1
    assert order == [0, 0, 0]


def test_text_goes_to_disk_and_other_objects_do_not(tmp_path: Path) -> None:
    write_sets(tmp_path, [{"s": np.array(["a", "b"], object)}])
    with np.load(tmp_path / "0.npz", allow_pickle=False) as stored:
        assert stored["s"].tolist() == ["a", "b"]
    for other in (np.array([None], object), [], None):
        with pytest.raises(InputError, match="input 's'"):
            write_sets(tmp_path, [{"s": other}])  # type: ignore[dict-item]
