"""Hand-assembled programs through the binding: control flow, call-outs, kernels, refusals."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from tests.runtime.programs import BOOL, F32, I64, calling, program, runner, tensor

from tierup import _native
from tierup.errors import InputError
from tierup.plan.program import Assembler, DimCode, StepCode

X = np.arange(6, dtype=np.float32).reshape(2, 3)
KERNEL = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_int64),
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
)


def address(kernel: Any) -> int:
    value = ctypes.cast(kernel, ctypes.c_void_p).value
    assert value is not None
    return value


def test_exceptions_in_callouts_pass_unchanged() -> None:
    error = KeyError("mine")

    def fail(x: Any) -> tuple[Any]:
        raise error

    model = calling(fail)
    with pytest.raises(KeyError) as caught:
        model(x0=X)
    assert caught.value is error
    with pytest.raises(KeyError):
        model(x0=X)  # and again: nothing was left behind


@pytest.mark.parametrize("result", [1, [1], (), (1, 2)], ids=str)
def test_callouts_return_tuples_of_the_right_length(result: Any) -> None:
    with pytest.raises(TypeError, match="has to return a tuple of 1 results"):
        calling(lambda x: result)(x0=X)


def test_branches_run_one_side() -> None:
    code = Assembler("if", 3)
    to_else = code.emit(StepCode.BRANCH, 0, 0)
    code.emit(StepCode.CALLOUT, 0, [1], [2])
    to_end = code.emit(StepCode.JUMP, 0)
    code.land(to_else)
    code.emit(StepCode.CALLOUT, 1, [1], [2])
    code.land(to_end)
    ran: list[str] = []
    sides = [lambda x: ran.append("then") or (x + 1,), lambda x: ran.append("else") or (x - 1,)]
    model = runner([tensor("c", [], BOOL), tensor("x")], ["y"], program((code, (0, 1), (2,)), callouts=sides))
    np.testing.assert_array_equal(model(c=np.array(True), x=X)["y"], X + 1)
    np.testing.assert_array_equal(model(c=np.array(False), x=X)["y"], X - 1)
    assert ran == ["then", "else"]


def scan() -> Any:
    """Rows of x from the last to the first, each plus its number, stacked along axis 1; the body is a function."""
    main, body = Assembler("scan", 5), Assembler("body", 3)
    body.emit(StepCode.CALLOUT, 0, [0, 1], [2])
    step, length, one, more, back = (main.dim() for _ in range(5))
    main.dims((DimCode.CONST, step, 0), (DimCode.OF, length, 0, 0), (DimCode.CONST, one, 1))
    top = len(main.steps)
    main.dims((DimCode.LT, more, step, length), (DimCode.SUB, back, length, step), (DimCode.SUB, back, back, one))
    end = main.emit(StepCode.BRANCH_DIM, more, 0)
    main.emit(StepCode.INDEX, 1, 0, 0, back)
    main.emit(StepCode.SCALAR, 2, I64, step)
    main.emit(StepCode.CALL, 1, [1, 2], [1])
    main.emit(StepCode.PUSH, 3, 1)
    main.dims((DimCode.ADD, step, step, one))
    main.emit(StepCode.JUMP, top)
    main.land(end)
    main.dims((DimCode.OF, length, 0, 1))
    main.emit(StepCode.STACK, 4, 3, 1, 0, F32, [length])
    add = lambda row, i: (row + np.float32(i),)  # noqa: E731
    return runner([tensor("x", [-1, -1])], ["y"], program((main, (0,), (4,)), (body, (0, 1), (2,)), callouts=[add]))


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_loops_calls_and_stacks(rows: int) -> None:
    x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    expected = (x[::-1] + np.arange(rows, dtype=np.float32)[:, None]).T
    np.testing.assert_array_equal(scan()(x=x)["y"], expected)


def test_lists_reach_callouts_and_callers_as_lists() -> None:
    code = Assembler("list", 3)
    code.emit(StepCode.PUSH, 1, 0)
    code.emit(StepCode.PUSH, 1, 0)
    code.emit(StepCode.CALLOUT, 0, [1], [2])
    model = runner([tensor("x")], ["n", "l"], program((code, (0,), (2, 1)), callouts=[lambda items: (len(items),)]))
    result = model(x=X)
    assert result["n"] == 2
    assert [type(item) for item in result["l"]] == [np.ndarray, np.ndarray]
    assert not np.shares_memory(result["l"][0], result["l"][1])
    assert not np.shares_memory(result["l"][0], X)


def test_a_callout_may_call_the_same_model() -> None:
    model: Any = None

    def again(n: Any) -> tuple[Any]:
        return (n if n == 0 else model(x0=n - 1)["y0"] + 1,)

    model = calling(again)
    assert model(x0=20) == {"y0": 20}


def kernel_program(slots: int = 1) -> _native.Program:
    """y = kernel(x) over all elements, y in an arena of its own and copied out."""
    code = Assembler("kernel", 2)
    size, offset, arena = (code.dim() for _ in range(3))
    code.dims((DimCode.OF, size, 0, 0), (DimCode.CONST, offset, 64), (DimCode.CONST, arena, 4096))
    code.emit(StepCode.ARENA, arena)
    code.emit(StepCode.ALLOC, 1, F32, 1, offset, [size])
    code.emit(StepCode.KERNEL, 0, [0, 1], [size], -1, size, size)
    return program((code, (0,), (1,)), slots=slots)


def scaling(factor: float, status: int = 0) -> Any:
    def kernel(buffers: Any, sizes: Any, scratch: Any, begin: int, end: int) -> int:
        x, y = (ctypes.cast(buffers[i], ctypes.POINTER(ctypes.c_float)) for i in range(2))
        for i in range(begin, end):
            y[i] = x[i] * factor
        return status

    return KERNEL(kernel)


def test_kernels_are_published_into_slots() -> None:
    loaded = kernel_program()
    model = runner([tensor("x", [-1])], ["y"], loaded)
    x = np.arange(100, dtype=np.float32)
    with pytest.raises(InputError, match="slot 0 holds no kernel"):
        model(x=x)
    for factor in (2.0, 3.0):
        kernel = scaling(factor)
        loaded.publish({0: (address(kernel), kernel)})
        assert loaded.kernel_addresses() == [address(kernel)]
        np.testing.assert_array_equal(model(x=x)["y"], x * factor)
    loaded.publish({0: (0, None)})
    with pytest.raises(InputError, match="holds no kernel"):
        model(x=x)
    with pytest.raises(IndexError, match="slot 1, but there are 1"):
        loaded.publish({1: (0, None)})


def test_a_kernel_that_gives_up_is_an_input_error() -> None:
    loaded, kernel = kernel_program(), scaling(1, status=3)
    loaded.publish({0: (address(kernel), kernel)})
    model = runner([tensor("x", [-1])], ["y"], loaded)
    with pytest.raises(InputError, match=r"function 0, step 3 \(kernel\).*status 3"):
        model(x=np.ones(4, np.float32))


def test_errors_of_a_call_name_the_step() -> None:
    code = Assembler("broadcast", 2)
    a, b = code.dim(), code.dim()
    code.dims((DimCode.OF, a, 0, 0), (DimCode.OF, b, 1, 0), (DimCode.BROADCAST, a, a, b))
    model = runner([tensor("x"), tensor("y")], ["z"], program((code, (0, 1), (0,))))
    place = r"function 0, step 0 \(dims\): dim instruction 2 \(broadcast\): sizes 2 and 3"
    with pytest.raises(InputError, match=place):
        model(x=X, y=X.T)


def test_memory_that_is_not_there() -> None:
    code = Assembler("large", 1)
    size = code.dim()
    code.dims((DimCode.CONST, size, 2**61))
    code.emit(StepCode.ALLOC, 0, BOOL, 0, -1, [size])
    model = runner([], ["y"], program((code, (), (0,))))
    with pytest.raises(MemoryError):
        model()


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ([], "at least one function"),
        ([(1, 0, [0], [0], [], [(5, 0, 1)])], r"function 0, step 0 \(copy\): operand 'src' is 1"),
        ([(1, 0, [0], [0], [], [(2**70,)])], "function 0 is no"),
        ([(1, 0, [0])], "function 0 is no"),
        ([(1, 0, [0], [0], [(0, 0)], [])], "function 0 is no"),
    ],
)
def test_malformed_programs(functions: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _native.Program(functions, [], [], 0)


def test_callouts_must_be_callable() -> None:
    with pytest.raises(ValueError, match="call-out 1 cannot be called"):
        _native.Program([(0, 0, [], [], [], [])], [print, 3], [], 0)  # type: ignore[list-item]
