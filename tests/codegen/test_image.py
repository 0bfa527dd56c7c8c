"""Images: the same code as the objects they come from, wherever it lies; what cannot be one is refused."""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Mapping, Sequence
from itertools import count

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tests.lower.samples import Sample, layer_norm_sample, matmul_sample, softmax_sample
from tests.lower.strategies import Case, programs

from tierup import _native
from tierup.codegen import elf
from tierup.codegen.image import ALIGNMENT, images, runs_images
from tierup.codegen.llvm.emit import emit_llvm
from tierup.codegen.objects import ENTRY, build, compile_object, load_object
from tierup.codegen.target import AVX2, NEON, target_of
from tierup.ir.types import Array
from tierup.lower.interpret import grid_steps
from tierup.lower.tile import TileProgram
from tierup.profile.machine import identify
from tierup.runtime.kernels import load_code

HOST = target_of(identify()) or AVX2
KERNEL = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
)
_LIBRARIES = count()
_ARGUMENTS = "ptr %b, ptr %s, ptr %t, i64 %x, i64 %y"

needs_images = pytest.mark.skipif(not runs_images(HOST), reason="this machine loads objects")


def call(address: int, program: TileProgram, buffers: Mapping[str, Array], sizes: Sequence[int]) -> None:
    passed = [buffers[b.name] for b in program.buffers if b.mode != "scratch"]
    scratch = [buffers[b.name] for b in program.buffers if b.mode == "scratch"]
    pointers = (ctypes.c_void_p * max(len(passed), 1))(*(array.ctypes.data for array in passed))
    numbers = (ctypes.c_int64 * max(len(sizes), 1))(*sizes)
    room = scratch[0].ctypes.data if scratch else None
    assert KERNEL(address)(pointers, numbers, room, 0, grid_steps(program, sizes)) == 0


def answer(address: int, begin: int = 0) -> int:
    """What a kernel that only computes with its arguments returns."""
    return int(KERNEL(address)(None, None, None, begin, 0))


def samples() -> list[Sample]:
    return [
        sample
        for rows in (1, 3)
        for sample in (softmax_sample((5, 70), rows), layer_norm_sample((5, 70), rows), matmul_sample((5, 40, 7)))
    ]


def through_llvm(program: TileProgram) -> tuple[int, object]:
    loaded = load_object(compile_object(emit_llvm(program, HOST), HOST), program.name, f"image{next(_LIBRARIES)}")
    return loaded.address, loaded


@needs_images
def test_a_batch_gives_the_bits_that_llvm_loads() -> None:
    batch, alone = samples(), samples()
    loaded = load_code(build([sample.program for sample in batch], HOST), HOST)
    assert len({id(keeper) for _, keeper in loaded}) == 1  # one mapping for all of them
    for (address, _), there, here in zip(loaded, batch, alone, strict=True):
        other, _keep = through_llvm(here.program)
        call(address, there.program, there.buffers, there.sizes)
        call(other, here.program, here.buffers, here.sizes)
        assert there.buffers[there.out].tobytes() == here.buffers[here.out].tobytes()
        assert np.any(there.buffers[there.out])


@needs_images
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_random_programs_give_the_bits_that_llvm_loads(case: Case) -> None:
    imaged, linked = case.arrays(), case.arrays()
    [(address, _keep)] = load_code(build([case.program], HOST), HOST)
    call(address, case.program, imaged, case.sizes)
    other, _also = through_llvm(case.program)
    call(other, case.program, linked, case.sizes)
    assert {name: array.tobytes() for name, array in imaged.items()} == {
        name: array.tobytes() for name, array in linked.items()
    }


@needs_images
def test_an_image_runs_at_any_border() -> None:
    text = f"define i32 @k({_ARGUMENTS}) nounwind {{\n %f = sitofp i64 %x to double\n %g = fmul double %f, 1.5\n"
    text += " %r = fptosi double %g to i32\n ret i32 %r\n}"
    image = images(compile_object(text, HOST))["k"]
    loaded = _native.Code([b"\xcc" * (ALIGNMENT * shift + 1) for shift in range(5)] + [image])
    assert answer(loaded.addresses[-1], 10) == 15


def test_programs_of_one_name_are_kept_apart() -> None:
    first, second = softmax_sample((2, 8), 1), softmax_sample((2, 8), 3)
    assert first.program.name == second.program.name
    codes = build([first.program, second.program, first.program], HOST)
    assert codes[0] != codes[1]
    assert len(codes) == 3
    assert load_code([], HOST) == []


def test_a_kernel_may_consist_of_several_functions() -> None:
    text = f"""define i32 @helper(i32 %v) nounwind noinline {{
  %r = mul i32 %v, 3
  ret i32 %r
}}
define i32 @k({_ARGUMENTS}) nounwind {{
  %v = trunc i64 %x to i32
  %r = call i32 @helper(i32 %v)
  ret i32 %r
}}"""
    found = images(compile_object(text, AVX2))
    assert found.keys() == {"helper", "k"}
    loaded = _native.Code([found["k"]])
    assert answer(loaded.addresses[0], 7) == 21


def jumps(*names: str) -> str:
    """Functions that get a jump table each: were there nothing to load, LLVM would write a table of numbers instead."""
    cases = " ".join(f"i64 {number}, label %case{number}" for number in range(5))
    body = f"  switch i64 %x, label %other [ {cases} ]\nother:\n  ret i32 99\n"
    for number in range(5):
        body += f"case{number}:\n  %v{number} = load volatile i32, ptr %s\n  ret i32 {number * 11 + 10}\n"
    return "\n".join(f"define i32 @{name}({_ARGUMENTS}) nounwind {{\n{body}}}" for name in names)


def test_a_jump_table_of_one_function() -> None:
    code = compile_object(jumps("k"), AVX2)
    assert len(elf.read_object(code).relocations) == 2, "LLVM wrote no jump table"
    loaded = _native.Code([images(code)["k"]])
    one = (ctypes.c_int32 * 1)(1)
    kernel = KERNEL(loaded.addresses[0])
    assert [kernel(None, one, None, x, 0) for x in range(6)] == [10, 21, 32, 43, 54, 99]


def test_jump_tables_of_several_functions_are_refused() -> None:
    with pytest.raises(ValueError, match="one of several functions"):
        images(compile_object(jumps("k", "l"), AVX2))


REFUSED = {
    "a kernel calls expf": f"""declare float @expf(float)
define i32 @k({_ARGUMENTS}) {{
  %v = call float @expf(float 1.0)
  %i = fptosi float %v to i32
  ret i32 %i
}}""",
    "a kernel calls elsewhere": f"""@elsewhere = external global i32
define i32 @k({_ARGUMENTS}) {{
  %v = load i32, ptr @elsewhere
  ret i32 %v
}}""",
    "data that is written": f"""@state = internal global i32 7
define i32 @k({_ARGUMENTS}) {{
  %v = load i32, ptr @state
  store i32 1, ptr @state
  ret i32 %v
}}""",
    "data that is written ": f"""@pointer = constant ptr @k
define i32 @k({_ARGUMENTS}) {{
  %p = load volatile ptr, ptr @pointer
  %e = icmp eq ptr %p, %b
  %v = zext i1 %e to i32
  ret i32 %v
}}""",
    "more than 64": f"""@wide = private constant [64 x float] zeroinitializer, align 256
define i32 @k({_ARGUMENTS}) {{
  %p = getelementptr float, ptr @wide, i64 %x
  %v = load volatile i32, ptr %p
  ret i32 %v
}}""",
    "local function beside others": f"""define internal i32 @helper(i64 %v) noinline {{
  ret i32 3
}}
define i32 @k({_ARGUMENTS}) {{
  %v = call i32 @helper(i64 %x)
  ret i32 %v
}}""",
    "belongs to no function": f"""define private i32 @helper(i64 %v) noinline {{
  ret i32 3
}}
define i32 @k({_ARGUMENTS}) {{
  %v = call i32 @helper(i64 %x)
  ret i32 %v
}}""",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_needs_a_linker_is_refused(reason: str) -> None:
    with pytest.raises(ValueError, match=reason.strip()):
        images(compile_object(REFUSED[reason], AVX2))


@pytest.mark.parametrize("kind", [1, 9, 10, 11, 24, 41, 42])  # 64, GOTPCREL, 32, 32S, PC64, GOTPCRELX and its REX form
def test_other_relocations_are_refused(kind: int) -> None:
    code = bytearray(compile_object(emit_llvm(softmax_sample((2, 8)).program, AVX2), AVX2))
    at = code.index(struct.pack("<q", -4)) - 16  # the first relocation: offset, kind and symbol, addend
    assert struct.unpack_from("<I", code, at + 8)[0] == 2
    struct.pack_into("<I", code, at + 8, kind)
    with pytest.raises(ValueError, match=f"kind {kind}, which needs an absolute address"):
        images(bytes(code))


def test_other_machines_have_no_images() -> None:
    program = softmax_sample((2, 8)).program
    assert not runs_images(NEON)
    [code] = build([program], NEON)
    assert ENTRY in [symbol.name for symbol in elf.read_object(code).symbols]
    with pytest.raises(ValueError, match="not for x86-64"):
        images(code)


def test_every_truncated_object_is_refused() -> None:
    code = compile_object(emit_llvm(softmax_sample((2, 8)).program, AVX2), AVX2)
    for end in range(0, len(code), 7):
        with pytest.raises(ValueError, match="object code"):
            images(code[:end])


def test_damaged_objects_are_refused_or_read() -> None:
    """Nothing but a ValueError, whatever bytes are changed; what comes out is not run."""
    whole = compile_object(emit_llvm(softmax_sample((2, 8)).program, AVX2), AVX2)
    table = struct.unpack_from("<Q", whole, 40)[0]
    symbols_at = next(whole.index(section.data) for section in elf.read_object(whole).sections if section.kind == 2)
    draw = random.Random(5)
    outcomes = {"read": 0, "refused": 0}
    for round in range(6000):
        code = bytearray(whole)
        # headers, symbols and relocations are where damage does something: most changes go there
        low, high = [(0, 64), (table, len(whole)), (symbols_at, table), (0, len(whole))][round % 4]
        for _ in range(draw.randint(1, 4)):
            code[draw.randrange(low, high)] = draw.choice((0, 1, 2, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        try:
            images(bytes(code))
            outcomes["read"] += 1
        except ValueError:
            outcomes["refused"] += 1
    assert outcomes["read"] > 100
    assert outcomes["refused"] > 1000
