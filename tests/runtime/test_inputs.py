"""How calls bind their inputs: what is taken as it is, and what goes to convert_feeds()."""

from __future__ import annotations

import array
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from tests.runtime.programs import (
    ANY,
    BF16,
    BFLOAT16,
    CHECKED,
    DEFAULT,
    F32,
    I64,
    calling,
    copying,
    passing,
    program,
    runner,
    tensor,
)

from tierup import _native
from tierup.errors import InputError
from tierup.plan.program import Assembler, StepCode

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_keyword_dict_and_list_calls_agree() -> None:
    model = copying(tensor("x", [-1, 3]))
    for result in (model(x=X), model.run({"x": X})):
        assert list(result) == ["y"]
        np.testing.assert_array_equal(result["y"], X)
    (listed,) = model.call_list(None, {"x": X})
    np.testing.assert_array_equal(listed, X)
    assert model.calls == 3
    assert model.slow == []


@pytest.mark.parametrize(
    "given",
    [
        X[:, ::-1],
        X.T[:3],
        X[::2],
        np.broadcast_to(X[:1], (4, 3)),
        X[:0],
        np.frombuffer(b"x" * 25, "f4", 6, 1),
        X[0, 0, None],
    ],
    ids=["negative", "transposed", "gaps", "broadcast", "empty", "unaligned", "one"],
)
def test_strided_inputs_are_taken_as_they_are(given: Any) -> None:
    model = copying()
    np.testing.assert_array_equal(model(x=given)["y"], given)
    assert model.slow == []


def test_zero_d() -> None:
    model = copying(tensor("x", []))
    result = model(x=np.array(3, np.float32))["y"]
    assert isinstance(result, np.ndarray)
    assert result.shape == ()
    assert result == 3


def test_callouts_see_the_callers_own_array() -> None:
    seen: list[Any] = []

    def note(x: Any) -> tuple[Any]:
        seen.append(x)
        return (x,)

    strided = X[:, ::2]
    model = calling(note, dtype=F32)
    result = model(x0=strided)["y0"]
    assert seen[0] is strided
    assert result is not strided
    assert not np.shares_memory(result, X)


@pytest.mark.parametrize(
    "feeds",
    [
        {"x": X.astype(np.float64)},
        {"x": X.astype(">f4")},
        {"x": X[0]},
        {"x": X[:, :2]},
        {"x": X.tolist()},
        {"x": array.array("f", [1.0])},
        {"x": np.float32(1)},
        {"x": np.ma.masked_array(X)},
        {"x": None},
        {},
        {"y": X},
        {"x": X, "y": X},
        {1: X},
        MappingProxyType({"x": X}),
        None,
    ],
    ids=str,
)
def test_whatever_does_not_fit_goes_the_slow_way(feeds: Any) -> None:
    model = copying(tensor("x", [-1, 3]))
    with pytest.raises(InputError, match="the test refuses"):
        model.run(feeds)
    assert model.slow[0] is feeds
    model.converted = {"x": X}
    np.testing.assert_array_equal(model.run(feeds)["y"], X)
    model.converted = {"x": X[0]}
    with pytest.raises(RuntimeError, match="still do not fit"):
        model.run(feeds)


def test_the_base_class_refuses_on_the_slow_way() -> None:
    model = _native.Runner([tensor("x")], ["y"])
    model.program = program((Assembler("pass", 1), (0,), (0,)))
    with pytest.raises(InputError, match="do not fit"):
        model(x=1)


def test_named_dims_agree_within_a_call() -> None:
    code = Assembler("pair", 2)
    pair = program((code, (0, 1), (0, 1)))
    model = runner([tensor("a", [-2, -3]), tensor("b", [-3, -2])], ["c", "d"], pair)
    model(a=np.zeros((2, 5), np.float32), b=np.zeros((5, 2), np.float32))
    model(b=np.zeros((4, 3), np.float32), a=np.zeros((3, 4), np.float32))
    assert model.slow == []
    with pytest.raises(InputError):
        model(a=np.zeros((2, 5), np.float32), b=np.zeros((4, 2), np.float32))
    within = copying(tensor("x", [-2, -2]))
    within(x=np.zeros((2, 2), np.float32))
    with pytest.raises(InputError):
        within(x=X)


def test_optional_inputs_take_their_default() -> None:
    code = Assembler("default", 2)
    code.emit(DEFAULT, 1, 0)
    default = np.array([7], np.float32)
    model = runner(
        [tensor("x"), tensor("w", required=False)], ["a", "b"], program((code, (0, 1), (0, 1)), constants=[default])
    )
    assert model(x=X)["b"] == 7
    assert model(x=X, w=np.array([9], np.float32))["b"] == 9
    assert model.slow == []
    with pytest.raises(InputError):
        model(w=default)


def test_an_input_left_out_reaches_callouts_as_none() -> None:
    code = Assembler("optional", 2)
    code.emit(StepCode.CALLOUT, 0, [0, -1], [1])
    seen: list[Any] = []

    def note(*args: Any) -> tuple[int]:
        seen.append(args)
        return (1,)

    model = runner([tensor("x", required=False)], ["y"], program((code, (0,), (1,)), callouts=[note]))
    assert model() == {"y": 1}
    assert seen == [(None, None)]


def test_ml_dtypes_in_and_out() -> None:
    model = copying(("x", BF16, [-1], True))
    given = np.array([1.5, -2, 3], BFLOAT16)
    result = model(x=given[::2])["y"]
    assert result.dtype == BFLOAT16
    np.testing.assert_array_equal(result, given[::2])
    assert model.slow == []
    with pytest.raises(InputError):
        model(x=given.astype(np.float16))


def test_long_long_is_int64() -> None:
    model = copying(("x", I64, None, True))
    model(x=np.array([1, 2], np.longlong))
    assert model.slow == []


def test_strings_and_objects() -> None:
    words = np.array(["a", "bc"], object)
    model = runner([("x", 8, [2], True)], ["y"], program((Assembler("pass", 1), (0,), (0,))))
    result = model(x=words)["y"]
    assert result is not words
    assert result.tolist() == ["a", "bc"]
    assert calling(lambda x: (x,))(x0={"k": None}) == {"y0": {"k": None}}


def test_positional_inputs_are_refused() -> None:
    with pytest.raises(TypeError, match="by keyword"):
        copying()(X)  # type: ignore[call-arg]


def test_a_runner_without_a_program_says_so() -> None:
    model = copying()
    model.program = None
    assert model.program is None
    with pytest.raises(InputError, match="the test refuses"):
        model(x=X)
    model.converted = {"x": X}
    with pytest.raises(RuntimeError, match="no program"):
        model(x=X)


def test_specs_are_checked() -> None:
    with pytest.raises(ValueError, match="type code"):
        _native.Runner([("x", 99, None, True)], ["y"])
    with pytest.raises(ValueError, match="used for two"):
        _native.Runner([tensor("x"), tensor("x")], ["y"])
    with pytest.raises(ValueError, match="numbered from 0"):
        _native.Runner([tensor("x", [-(2**62)])], ["y"])
    with pytest.raises(ValueError, match="2 inputs and 2 outputs, the model has 1 and 1"):
        copying().program = program((Assembler("two", 2), (0, 1), (0, 1)))


def test_a_runner_that_was_not_initialised_is_refused() -> None:
    class Lazy(_native.Runner):
        def __init__(self) -> None:
            pass

    with pytest.raises((TypeError, RuntimeError)):
        Lazy()()


def test_any_object_keeps_its_type() -> None:
    model = calling(lambda x: (type(x).__name__,), dtype=ANY)
    assert model(x0=[1, 2])["y0"] == "list"
    assert model(x0=X)["y0"] == "ndarray"


def test_a_checked_object_goes_through_the_careful_way_first() -> None:
    model = passing(tensor("x", dtype=CHECKED))
    model.converted = {"x": [1, 2]}
    assert model.run({"x": "anything"})["y"] == [1, 2]
    assert model.slow == [{"x": "anything"}]
