"""Proofs: every kernel of small networks passes, and kernels that were damaged are refused, each with its reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from tests.adapt.networks import (
    Alone,
    cases,
    chain,
    constant,
    distinct,
    encoder,
    load,
    of_kind,
    perceptron,
    program_of,
    with_program,
)
from tests.codegen.running import HOST
from tests.security.models import model, node, value

from tierup.adapt.case import Case
from tierup.adapt.case_record import record_of
from tierup.adapt.draws import draw_inputs
from tierup.adapt.prove import ROUNDS, Proof, Round, prove, prove_code
from tierup.adapt.trial import Sized
from tierup.codegen.objects import build
from tierup.ir.build import GraphBuilder
from tierup.ir.dims import DimOp
from tierup.ir.graph import Weights
from tierup.ir.types import DType
from tierup.lower.kernel import Kernel, Panels
from tierup.lower.parse import parse_program
from tierup.lower.text import print_program
from tierup.lower.tile import Index, Load, Loop, Statement, Store
from tierup.runtime.constants import pack_panels


def proof_of(case: Case, seed: int = 0) -> Proof:
    loaded = load(case)
    return prove(case, [address for address, _ in loaded], seed=seed)


def refused(case: Case) -> str:
    proof = proof_of(case)
    assert not proof.passed
    return proof.reason


ALONE = [alone for proto in (perceptron(), chain(), encoder()) for alone in distinct(proto)]


@pytest.mark.parametrize("alone", ALONE, ids=[f"{alone.kind}{number}" for number, alone in enumerate(ALONE)])
def test_right_kernels_pass(alone: Alone) -> None:
    proof = proof_of(alone.case)
    assert (proof.passed, proof.reason) == (True, "")
    assert proof.rounds >= 9
    assert proof.judged > 500
    if alone.kind != "move":
        assert 0 < proof.rms <= 2 * proof.rms_baseline
        assert proof.worst > proof.rms


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("kernel", [[3, 3], [3, 3, 3]])
def test_convolutions_that_pass_over_padding_pass(kernel: list[int], group: int) -> None:
    """Also with weights that are not finite, which zeros beyond the data would turn to NaN."""
    n = len(kernel)
    w = np.random.default_rng(4).standard_normal((16, 16 // group, *kernel)).astype(np.float32)
    conv = node("Conv", ["x", "w"], ["y"], pads=[1] * 2 * n, strides=[2] * n, group=group)
    proto = model(
        [conv], [value("x", [1, 16, *(5,) * n])], [value("y", [None] * (n + 2))], [constant("w", w)]
    )  # fmt: skip
    (alone,) = (alone for alone in distinct(proto) if alone.kind == "conv")
    assert " when " in print_program(program_of(alone.case))
    assert proof_of(alone.case).reason == ""


def test_all_kinds_of_kernels_are_tried() -> None:
    ops = {kind: set[str]() for kind in ("matmul", "rows", "attention")}
    for alone in ALONE:
        ops[alone.kind] |= {node.op for node in alone.case.graph.nodes}
    assert {"core.max", "core.erf", "core.add"} <= ops["matmul"]
    assert {"core.erf", "core.tanh", "core.exp", "core.reduce_max", "core.sqrt"} <= ops["rows"]
    assert {"core.exp", "core.transpose", "core.reshape"} <= ops["attention"]


def test_equal_seeds_give_equal_proofs() -> None:
    case = of_kind(perceptron(), "rows")
    first, again, other = (msgspec.structs.replace(proof_of(case, seed), seconds=0) for seed in (3, 3, 4))
    assert first == again != other


def test_a_worker_proves_from_data_alone() -> None:
    case = of_kind(encoder(), "attention")
    record = msgspec.msgpack.decode(msgspec.msgpack.encode(record_of(case)), type=type(record_of(case)))
    proof = prove_code(record, build([program_of(case)], HOST), HOST)
    assert proof.passed, proof.reason
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(proof), type=Proof) == proof


def changed(case: Case, pattern: str, replacement: str) -> Case:
    """The case with the first line that matches changed."""
    text, count = re.subn(pattern, replacement, print_program(program_of(case)), count=1)
    assert count == 1
    return with_program(case, parse_program(text))


def edited(case: Case, edit: Callable[[Statement], Statement | None]) -> Case:
    """The case with each statement of its program put through `edit`."""

    def walk(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        kept = []
        for statement in body:
            inner = replace(statement, body=walk(statement.body)) if isinstance(statement, Loop) else statement
            result = edit(inner)
            kept += [] if result is None else [result]
        return tuple(kept)

    program = program_of(case)
    return with_program(case, replace(program, body=walk(program.body)))


def gelu_case() -> Case:
    return next(a.case for a in cases(encoder()) if any(n.op == "core.erf" for n in a.case.graph.nodes))


def relu_case() -> Case:
    return of_kind(perceptron(), "matmul")


def test_a_wrong_constant() -> None:
    reason = refused(changed(gelu_case(), r"fill 0\.5\n", "fill 0.5001\n"))
    assert re.search(r"^result 0 at \[.*\] is .* instead of .*, off by .* where .* is allowed \(c = ", reason)
    assert "normal elements, few sizes" in reason


def test_a_wrong_operation() -> None:
    assert "instead of" in refused(changed(of_kind(chain(), "rows"), r"= erf ", "= tanh "))


def test_a_dropped_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last row of those that are left over from tiles is not written, where there is one.

    All elements are finite: where infinities were drawn, some of that row would have to be NaN, as what is not written.
    """
    monkeypatch.setattr("tierup.adapt.prove.ROUNDS", (Round("wide", "ragged"),))
    reason = refused(edited(relu_case(), lambda s: None if isinstance(s, Loop) and s.axis == "i1" else s))
    found = re.search(r"^result 0 at \[(\d+), 0\] is nan instead of .*; 70 of (\d+) elements are wrong", reason)
    assert found is not None, reason
    last, elements = map(int, found.groups())
    assert (last + 1) * 70 == elements


def shifted(index: Index, by: int) -> Index:
    return replace(index, offset=by)


def test_a_store_that_is_off_by_one() -> None:
    def edit(statement: Statement) -> Statement:
        return replace(statement, index=shifted(statement.index, 1)) if isinstance(statement, Store) else statement

    assert refused(edited(relu_case(), edit)).startswith("it writes behind buffer 'out'")


def test_a_store_before_the_result() -> None:
    def edit(statement: Statement) -> Statement:
        return replace(statement, index=shifted(statement.index, -1)) if isinstance(statement, Store) else statement

    assert refused(edited(relu_case(), edit)).startswith("it writes before buffer 'out'")


def test_a_read_behind_an_input() -> None:
    """What lies there is NaN."""

    def edit(statement: Statement) -> Statement:
        is_left = isinstance(statement, Load) and statement.buffer == "a"
        return replace(statement, index=shifted(statement.index, 1)) if is_left else statement  # type: ignore[union-attr]

    assert "instead of" in refused(edited(relu_case(), edit))


def test_a_write_to_an_input() -> None:
    """A program that verifies does not; a wrong binding does."""
    case = relu_case()
    program = program_of(case)
    reads = replace(program.buffers[0], mode="out")
    broken = replace(program, buffers=(reads, *program.buffers[1:]))
    text = print_program(broken).replace("store out[", "store a[", 1)
    loaded = load(with_program(case, parse_program(text)))
    assert "it writes" in prove(case, [loaded[0][0]]).reason


def test_lost_nan() -> None:
    """relu as a comparison: 0 where NaN came in."""
    case = relu_case()
    text, count = re.subn(
        r"%(\w+) : f32(\[.*\]) = max %(\w+), %(\w+)",
        r"%c\1 : bool\2 = lt %\4, %\3\n%\1 : f32\2 = select %c\1, %\3, %\4",
        print_program(program_of(case)),
    )
    assert count > 0
    reason = refused(with_program(case, parse_program(text)))
    assert "is 0.0 instead of nan" in reason
    assert "wild elements" in reason


def test_large_weights_are_drawn_once_and_once_with_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tierup.adapt.prove._WEIGHT_ELEMS", 100)
    case, drawn, packed = relu_case(), list[np.ndarray](), list[np.ndarray]()
    (panels,) = (buffer for buffer in case.kernels[0].buffers if isinstance(buffer, Panels))

    def draw(*given: Any) -> dict[int, np.ndarray]:
        inputs = draw_inputs(*given)
        drawn.append(inputs[panels.value])
        return inputs

    def pack(matrix: np.ndarray, width: int, form: str) -> np.ndarray:
        packed.append(matrix)
        return pack_panels(matrix, width, form=form)

    monkeypatch.setattr("tierup.adapt.prove.draw_inputs", draw)
    monkeypatch.setattr("tierup.adapt.trial.pack_panels", pack)
    assert proof_of(case).passed
    common, wild = packed[0], packed[1]
    assert np.isfinite(common).all()
    assert not np.isfinite(wild).all()
    again = [array for array in drawn if array is common]
    assert len(again) >= 8
    assert len(packed) == len(drawn) - len(again) + 1  # with laps, one of each lap is wild
    assert all(array is common or not np.isfinite(array).all() for array in drawn)


def test_wrong_products_with_common_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tierup.adapt.prove._WEIGHT_ELEMS", 100)
    test_lost_nan()
    test_a_write_to_an_input()
    test_a_dropped_row(monkeypatch)


def test_too_little_scratch() -> None:
    case = of_kind(encoder(), "attention")
    small = replace(case, kernels=(replace(case.kernels[0], scratch_bytes=64),))
    assert refused(small).startswith("it writes behind its scratch of 64 bytes")


def test_a_kernel_that_reads_scratch_before_it_writes_there() -> None:
    case = of_kind(encoder(), "attention")

    def drop(statement: Statement) -> Statement | None:
        turns = isinstance(statement, Loop) and any(isinstance(s, Loop) and s.axis == "c" for s in statement.body)
        return None if turns else statement

    assert "is nan instead of" in refused(edited(case, drop))


def test_a_kernel_that_is_sloppy() -> None:
    """Off by two units in the last place everywhere: inside the bound of a sum, but not of the baseline's quality."""
    proto = model(
        [node("Add", ["x", "z"], ["y"])], [value("x", ["n", 64]), value("z", ["n", 64])], [value("y", ["n", 64])]
    )
    case = of_kind(proto, "rows")
    assert proof_of(case).passed
    text = print_program(program_of(case))
    added = re.search(r"%(\w+) : f32(\[.*\]) = add .*\n", text)
    assert added is not None
    factor = np.nextafter(np.nextafter(np.float32(1), np.float32(2)), np.float32(2))
    text = text.replace(
        added[0], f"{added[0]}%by : f32[] = fill {float(factor)!r}\n%off : f32{added[2]} = mul %{added[1]}, %by\n"
    )
    text = re.sub(rf"(store .*), %{added[1]}", r"\1, %off", text)
    reason = refused(with_program(case, parse_program(text)))
    assert re.search(r"its RMS error over \d+ elements is .* eps · B, more than 2 times the baseline's", reason)


@pytest.mark.parametrize("length", [160, 640])
def test_one_lucky_sum_of_the_baseline_decides_nothing(length: int) -> None:
    """All elements of the row have the error of its mean: in some rounds the baseline's is a tenth of ours."""
    nodes = [
        node("ReduceMean", ["x"], ["m"], axes=[-1], keepdims=1),
        node("Add", ["m", "epsilon"], ["d"]),
        node("Div", ["x", "d"], ["y"]),
    ]
    row = [1, 1, 1, length]
    proto = model(nodes, [value("x", row)], [value("y", row)], [constant("epsilon", 1e-6)])
    for seed in range(12):
        proof = proof_of(of_kind(proto, "rows"), seed)
        assert (proof.passed, proof.reason) == (True, "")


def below() -> Case:
    """x < 0.3"""
    outputs = [value("y", ["n", 40], onnx.TensorProto.BOOL)]
    nodes = [node("Less", ["x", "limit"], ["y"])]
    return of_kind(model(nodes, [value("x", ["n", 40])], outputs, [constant("limit", 0.3)]), "rows")


def test_jumps_are_hit() -> None:
    case = below()
    assert proof_of(case).passed
    reason = refused(changed(case, "= lt ", "= le "))
    assert "is True instead of False" in reason
    assert "simple elements" in reason


def test_scores_that_are_masked_with_the_least_number() -> None:
    nodes = [node("Where", ["masked", "least", "x"], ["s"]), node("Softmax", ["s"], ["y"], axis=-1)]
    scores = ["b", 8, "t", "t"]
    inputs = [value("masked", ["b", 1, "t", "t"], onnx.TensorProto.BOOL), value("x", scores)]
    least = constant("least", np.finfo(np.float32).min)
    (alone,) = distinct(model(nodes, inputs, [value("y", scores)], [least]))
    proof = proof_of(alone.case)
    assert (proof.passed, proof.reason) == (True, "")
    assert proof.judged > 1000


def small_floats() -> onnx.ModelProto:
    kind = onnx.TensorProto.FLOAT8E4M3FN
    nodes = [
        node("Exp", ["x"], ["a"]),
        node("Cast", ["a"], ["b"], to=kind),
        node("Cast", ["b"], ["c"], to=onnx.TensorProto.FLOAT),
        node("Softmax", ["c"], ["y"]),
    ]
    made = model(nodes, [value("x", ("n", 37))], [value("b", ("n", 37), kind), value("y", ("n", 37))])
    made.opset_import[0].version = 19  # where Cast begins to know them
    return made


def test_casts_to_and_from_eight_bits() -> None:
    for alone in cases(small_floats()):
        proof = proof_of(alone.case)
        assert (proof.passed, proof.reason) == (True, "")


def test_a_cast_to_eight_bits_that_does_not_saturate() -> None:
    case = cases(small_floats())[0].case
    damaged = changed(case, r"fill 448.0", "fill 240.0")
    assert "result 0" in refused(damaged)


def test_bits_of_numbers() -> None:
    nodes = [
        node("Exp", ["x"], ["a"]),
        node("BitCast", ["a"], ["b"], to=onnx.TensorProto.INT32),
        node("Add", ["b", "b"], ["c"]),
        node("BitCast", ["c"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    bits = model(nodes, [value("x", ("n", 5))], [value("y", ("n", 5))])
    bits.opset_import[0].version, bits.ir_version = 26, 13
    proofs = [proof_of(alone.case) for alone in cases(bits)]
    assert [(proof.passed, proof.reason) for proof in proofs] == [(True, "")] * 4  # none is fused with another


def test_bools_that_are_not_written() -> None:
    case = below()
    broken = edited(case, lambda s: None if isinstance(s, Store) else s)
    assert refused(broken).startswith("a bool that it should have written is neither true nor false")


def test_an_op_without_a_rule_is_not_passed_silently() -> None:
    case = of_kind(perceptron(), "rows")
    nodes = tuple(replace(n, op="core.topk") if n.op == "core.exp" else n for n in case.graph.nodes)
    broken = replace(case, graph=replace(case.graph, nodes=nodes))
    assert refused(broken) == "core.topk has no rule for its error bound, so the kernel cannot be judged"


def lookup(checked: bool = True, rows: int = 11) -> Case:
    """y[i, :] = table[index[i], :], by hand: no region looks things up yet."""
    weights = Weights()
    builder = GraphBuilder(weights)
    table = builder.open_input(DType.F32, [rows, 24])
    indices = builder.open_input(DType.I64, ["n"])
    vector = builder.open_input(DType.I64, [1])
    found = builder.op("core.gather", table, indices, axis=0)
    graph = builder.finish([found])
    # what is isolated reads its sizes from the vector
    graph = replace(graph, dims=(DimOp("elem", (vector, 0)),))
    check = f"check %p < {rows}\n" if checked else ""
    program = parse_program(
        f"""program lookup(table: f32 in, index: i64 in, y: f32 out) sizes 1 vector j {{
  grid i < s0 step 1
  %p : i64[] = load index[i]
  {check}for j < 24 step 16 {{
    %v : f32[j] = load table[%p * 24 + j]
    store y[i * 24 + j], %v
  }}
}}
"""
    )
    (count,) = graph.values[indices].type.shape  # type: ignore[union-attr,misc]
    return Case(graph, weights, (Kernel(program, (table, indices, found), (count,), ((count, 1),), 1),))


def test_indices_lie_inside_and_bad_ones_end_the_call() -> None:
    proof = proof_of(lookup())
    assert proof.passed, proof.reason
    assert sum(round.bad_index for round in ROUNDS) == 1


def test_an_index_that_is_not_checked() -> None:
    """It reads the nearest row instead: what reads far outside ends the process, which is the worker's business."""
    case = lookup(checked=False)
    text = print_program(program_of(case)).replace(
        "%v : f32[j] = load table[%p * 24 + j]",
        "%zero : i64[] = fill 0\n%ten : i64[] = fill 10\n%low : i64[] = max %p, %zero\n"
        "%q : i64[] = min %low, %ten\n%v : f32[j] = load table[%q * 24 + j]",
    )
    assert refused(with_program(case, parse_program(text))).startswith("it takes an index that lies outside")


def test_constants_of_the_model_are_not_given_places_outside() -> None:
    """They were looked at when the kernel was made, which need not look again."""
    case = lookup(checked=False)
    fixed = replace(case, fixed=(case.graph.inputs[1],))
    assert proof_of(fixed).passed


def test_a_check_that_is_too_strict() -> None:
    case = lookup()
    text = print_program(program_of(case)).replace("check %p < 11", "check %p < 10")
    assert "it returns 1 where every index lies inside" in refused(with_program(case, parse_program(text)))


LARGE = 40_000  # rows, of which most stay zero


def test_a_large_table_is_drawn_and_looked_up_at_its_ends() -> None:
    case = lookup(rows=LARGE)
    table, index = case.graph.inputs[:2]
    sized = Sized(case, [64])
    inputs = draw_inputs(sized, np.random.default_rng(0), "normal", 0.0)
    drawn, rows = inputs[table], sized.ends[table]
    assert not drawn[rows:-rows].any()
    assert np.count_nonzero(drawn) > rows * 24
    assert {int(row) < rows for row in inputs[index]} == {True, False}
    assert all(row < rows or row >= LARGE - rows for row in inputs[index])
    assert not Sized(lookup(), [64]).ends
    proof = proof_of(case)
    assert proof.passed, proof.reason


def test_a_wrong_row_of_a_large_table() -> None:
    case = lookup(rows=LARGE)
    text = print_program(program_of(case))
    wrong = text.replace("table[%p * 24 + j]", "table[%p * 24 + j + 24]")
    assert wrong != text
    assert "instead of" in refused(with_program(case, parse_program(wrong)))
    strict = text.replace(f"check %p < {LARGE}", f"check %p < {LARGE - 1500}")
    assert "it returns 1 where every index lies inside" in refused(with_program(case, parse_program(strict)))


def test_sizes_that_never_agree() -> None:
    case = relu_case()
    broken = replace(case, assumed=((case.kernels[0].sizes[-1], 10**6),))
    assert refused(broken).startswith("no sizes were found for which the shapes of the region agree: sizes that are ")


def test_results_over_inputs() -> None:
    """A sum that is written over its own input, as the run time does: a kernel that reads it again is wrong there."""
    proto = model(
        [node("Add", ["x", "z"], ["y"])], [value("x", ["n", 64]), value("z", ["n", 64])], [value("y", ["n", 64])]
    )
    case = of_kind(proto, "rows")
    assert any(case.kernels[0].replaces(value) for value in case.graph.outputs)
    program = program_of(case)
    twice = replace(program, body=(Loop("again", 2, 1, program.body),))
    reason = refused(with_program(case, twice))
    assert "a result written over an input" in reason
