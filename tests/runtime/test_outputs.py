"""Outputs belong to the caller: whatever shares memory with anything else is copied."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np
import pytest
from tests.runtime.programs import ANY, BFLOAT16, F32, Recorder, calling, copying, passing, program, runner, tensor

from tierup.errors import InputError
from tierup.plan.program import Assembler, DimCode, StepCode

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def owns(array: Any) -> bool:
    return bool(array.flags.owndata and array.flags.writeable and array.base is None)


def test_native_memory_becomes_the_arrays_own() -> None:
    result = copying()(x=X)["y"]
    assert owns(result)
    assert result.ctypes.data % 64 == 0
    result[:] = 1  # writable, and nobody else's


def test_memory_that_became_the_arrays_own_can_be_resized() -> None:
    result = copying()(x=X)["y"]
    result.resize((20, 30), refcheck=False)
    np.testing.assert_array_equal(result.reshape(-1)[:7], [*X.reshape(-1), 0])
    result.resize((1, 2), refcheck=False)
    np.testing.assert_array_equal(result, X[:1, :2])


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_memory_of_one_answer_serves_the_next() -> None:
    model, x = copying(), np.ones((1 << 11, 1 << 11), np.float32)
    model(x=x)
    before, kept = resident_bytes(), []
    for count in range(20):
        model(x=x)
        kept.append(bytes(1000 + 16 * count))  # what happens to be allocated between calls
    assert resident_bytes() - before < 3 * x.nbytes  # 20 times that, if no answer's memory were used again


def test_an_input_is_copied() -> None:
    result = passing()(x=X)["y"]
    assert owns(result)
    assert not np.shares_memory(result, X)


def viewing(sizes: list[int], first: StepCode = StepCode.MOVE) -> Recorder:
    """y = x under another shape, after a move or a copy."""
    code = Assembler("view", 3)
    dims = [code.dim() for _ in sizes]
    code.dims(*((DimCode.CONST, dim, size) for dim, size in zip(dims, sizes, strict=True)))
    code.emit(first, 1, 0)
    code.emit(StepCode.VIEW, 2, 1, dims)
    return runner([tensor("x")], ["y"], program((code, (0,), (2,))))


@pytest.mark.parametrize("first", [StepCode.MOVE, StepCode.COPY])
@pytest.mark.parametrize("x", [X, X.T, X[::-1], X[:, 1:2].repeat(3, 1)], ids=["dense", "turned", "reversed", "fresh"])
def test_a_view_of_an_input_is_copied(x: Any, first: StepCode) -> None:
    before = x.copy()
    result = viewing([3, 1, 2], first)(x=x)["y"]
    np.testing.assert_array_equal(result, before.reshape(3, 1, 2))
    assert owns(result)
    assert not np.shares_memory(result, x)
    result[:] = 9
    np.testing.assert_array_equal(x, before)


def test_views_as_a_scalar_and_of_nothing() -> None:
    scalar = viewing([])(x=np.ones((1, 1), np.float32))["y"]
    assert scalar.shape == ()
    assert scalar == 1
    assert viewing([4, 0])(x=np.ones((0, 3), np.float32))["y"].shape == (4, 0)


def test_a_source_and_its_view_as_two_outputs() -> None:
    code = Assembler("both", 3)
    size = code.dim()
    code.dims((DimCode.CONST, size, 6))
    code.emit(StepCode.COPY, 1, 0)
    code.emit(StepCode.VIEW, 2, 1, [size])
    result = runner([tensor("x")], ["a", "b"], program((code, (0,), (1, 2))))(x=X)
    assert owns(result["a"])
    assert owns(result["b"])
    assert not np.shares_memory(result["a"], result["b"])


def test_a_view_with_another_count_is_an_error() -> None:
    message = r"function 0, step 2 \(view\): value 1 has 6 elements, but the dims say 8"
    with pytest.raises(InputError, match=message):
        viewing([2, 4])(x=X)


def test_a_temporary_input_is_copied() -> None:
    feeds = {"x": np.ones(3, np.float32)}
    result = passing().run(feeds)["y"]
    assert not np.shares_memory(result, feeds["x"])


def test_a_constant_is_copied() -> None:
    constant = np.ones(3, np.float32)
    code = Assembler("constant", 1)
    code.emit(StepCode.CONSTANT, 0, 0)
    model = runner([], ["y"], program((code, (), (0,)), constants=[constant]))
    result = model()["y"]
    result[:] = 5
    assert model()["y"].tolist() == [1, 1, 1]
    assert constant.tolist() == [1, 1, 1]


def test_one_value_as_two_outputs() -> None:
    code = Assembler("twice", 2)
    code.emit(StepCode.COPY, 1, 0)
    model = runner([tensor("x")], ["a", "b"], program((code, (0,), (1, 1))))
    result = model(x=X)
    assert owns(result["a"])
    assert owns(result["b"])
    assert not np.shares_memory(result["a"], result["b"])
    first, second, third = model.call_list(["b", "a", "b"], {"x": X})
    assert not np.shares_memory(first, second)
    assert not np.shares_memory(first, third)


def test_a_fresh_result_of_a_callout_is_handed_over() -> None:
    addresses: list[int] = []

    def fresh(x: Any) -> tuple[Any]:
        result = x + 1
        addresses.append(result.ctypes.data)
        return (result,)

    result = calling(fresh, dtype=F32)(x0=X)["y0"]
    assert owns(result)
    assert result.ctypes.data == addresses[0]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x,),
        lambda x: (x[1:],),
        lambda x: (x.reshape(-1),),
        lambda x: (np.zeros((2, 3), np.float32)[:1],),
        lambda x: (np.ma.masked_array(x),),
    ],
    ids=["input", "view of input", "reshape", "view", "subclass"],
)
def test_views_are_copied(function: Any) -> None:
    result = calling(function, dtype=F32)(x0=X)["y0"]
    assert type(result) is np.ndarray
    assert owns(result)
    assert not np.shares_memory(result, X)


def test_a_result_that_the_callout_keeps_is_copied() -> None:
    kept = np.ones(3, np.float32)
    result = calling(lambda x: (kept,), dtype=F32)(x0=X)["y0"]
    assert not np.shares_memory(result, kept)


def test_outputs_of_one_callout_do_not_share() -> None:
    def split(x: Any) -> tuple[Any, Any, Any]:
        whole = x + 1
        return whole, whole, whole[0]

    result = calling(split, outputs=3, dtype=F32)(x0=X)
    arrays = list(result.values())
    for i, one in enumerate(arrays):
        assert owns(one)
        assert not any(np.shares_memory(one, other) for other in arrays[i + 1 :])
    np.testing.assert_array_equal(arrays[2], X[0] + 1)


def test_numpy_scalars_become_arrays() -> None:
    result = calling(lambda x: (x.sum(),), dtype=F32)(x0=X)["y0"]
    assert type(result) is np.ndarray
    assert result.shape == ()
    assert result == 15
    small = calling(lambda x: (BFLOAT16.type(2),), dtype=F32)(x0=X)["y0"]
    assert type(small) is np.ndarray
    assert small.dtype == BFLOAT16


def test_containers_are_rebuilt() -> None:
    inner = np.ones(2, np.float32)
    given = [inner, {"k": (inner, "text")}, None]
    result = calling(lambda x: (x,), dtype=ANY)(x0=given)["y0"]
    assert result is not given
    assert not np.shares_memory(result[0], inner)
    assert not np.shares_memory(result[1]["k"][0], inner)
    assert result[1]["k"][1] == "text"
    assert result[2] is None


def test_a_container_that_holds_itself_is_an_error() -> None:
    given: list[Any] = []
    given.append(given)
    with pytest.raises(RecursionError):
        calling(lambda x: (x,), dtype=ANY)(x0=given)


def test_callouts_cannot_write_native_memory_and_may_keep_it() -> None:
    kept: list[Any] = []
    code = Assembler("keep", 3)
    code.emit(StepCode.COPY, 1, 0)
    code.emit(StepCode.CALLOUT, 0, [1], [2])

    def keep(x: Any) -> tuple[Any]:
        kept.append(x)
        return (x,)

    model = runner([tensor("x")], ["a", "b"], program((code, (0,), (1, 2)), callouts=[keep]))
    result = model(x=X)
    assert not kept[0].flags.writeable
    result["a"][:] = 0
    result["b"][:] = 0
    del model
    np.testing.assert_array_equal(kept[0], X)


def test_a_wrapper_that_is_not_kept_costs_no_copy() -> None:
    code = Assembler("look", 2)
    code.emit(StepCode.COPY, 1, 0)
    addresses: list[int] = []
    code.emit(StepCode.CALLOUT, 0, [1], [])
    model = runner(
        [tensor("x")],
        ["y"],
        program((code, (0,), (1,)), callouts=[lambda x: addresses.append(x.ctypes.data) or ()]),
    )
    result = model(x=X)["y"]
    assert result.ctypes.data == addresses[0]
    assert owns(result)


def test_unknown_output_names() -> None:
    with pytest.raises(InputError, match="no output 'z'"):
        copying().call_list(["z"], {"x": X})


def test_an_output_that_stays_empty_is_an_error() -> None:
    model = runner([], ["y"], program((Assembler("empty", 1), (), (0,))))
    with pytest.raises(InputError, match="output 'y' empty"):
        model()
