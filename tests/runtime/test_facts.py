"""Variants that rely on facts: they answer where these hold, and the open kernels of their slots answer the others."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.codegen.running import HOST
from tests.runtime.programs import F32, runner
from tests.security.models import model, node, value

from tierup import _native
from tierup.adapt.case_record import CaseRecord
from tierup.adapt.planning import placed_cases
from tierup.adapt.prove import prove_code
from tierup.codegen.objects import build
from tierup.frontends.onnx import load_onnx
from tierup.ir.facts import LIMIT_BYTES, Fact
from tierup.ir.graph import Weights
from tierup.reference.evaluate import evaluate
from tierup.runtime.compiled import Compiled, compile_plan
from tierup.runtime.executable import executable
from tierup.runtime.kernels import publish_code

I64 = 7
RANDOM = np.random.default_rng(8)


def floats(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def chain(sizes: list[int | str] | None = None, count: int = 4) -> onnx.ModelProto:
    """x · tanh(tanh(… m)): all of the chain is one number where m is."""
    shape = sizes or ["n", 32]
    nodes = [node("Tanh", [f"t{n}" if n else "m"], [f"t{n + 1}"]) for n in range(count)]
    nodes.append(node("Mul", ["x", f"t{count}"], ["y"]))
    return model(nodes, [value("x", shape), value("m", shape)], [value("y", shape)], [])


def attention() -> onnx.ModelProto:
    """softmax(q · kᵀ + (1 - mask) · -10000) · v, twice, and an embedding of types."""
    scores = [
        node("Cast", ["mask"], ["f"], to=TensorProto.FLOAT),
        node("Sub", ["one", "f"], ["hidden"]),
        node("Mul", ["hidden", "least"], ["flat"]),
        node("Unsqueeze", ["flat", "axes"], ["added"]),
        node("Gather", ["table", "types"], ["rows"]),
        node("Add", ["x", "rows"], ["x0"]),
    ]
    for n in range(2):
        scores += [
            node("Transpose", [f"x{n}"], [f"turned{n}"], perm=[0, 2, 1]),
            node("MatMul", [f"x{n}", f"turned{n}"], [f"scores{n}"]),
            node("Add", [f"scores{n}", "added"], [f"masked{n}"]),
            node("Softmax", [f"masked{n}"], [f"weights{n}"], axis=-1),
            node("MatMul", [f"weights{n}", f"x{n}"], [f"x{n + 1}"]),
        ]
    constants = {
        "one": np.float32(1),
        "least": np.float32(-10000),
        "axes": np.array([1]),
        "table": floats(2, 16),
    }
    inputs = [
        value("x", ["b", "s", 16]),
        helper.make_tensor_value_info("mask", TensorProto.INT64, ["b", "s"]),
        helper.make_tensor_value_info("types", TensorProto.INT64, ["b", "s"]),
    ]
    weights = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    return model(scores, inputs, [value("x2", ["b", "s", 16])], weights)


class Sample:
    """A model whose variants rely on facts, for the sizes of some calls."""

    def __init__(self, proto: onnx.ModelProto, feeds: dict[str, Any], *facts: Fact) -> None:
        self.imported = load_onnx(proto)
        graph, weights = self.imported.graph, Weights()
        for digest in self.imported.weights:
            weights.add(self.imported.weights[digest], digest)
        self.names = [graph.value_name(given) for given in graph.inputs]
        signature = tuple(feeds[name].shape for name in self.names)
        self.compiled: Compiled = compile_plan(graph, weights, HOST, [signature], facts=facts)
        self.weights = weights
        self.program = executable(self.compiled.plan, weights)
        publish_code(self.program, build(self.compiled.programs, HOST), HOST, self.compiled.plan.variants)
        codes = {np.dtype(np.float32): F32, np.dtype(np.int64): I64}
        self.runner = runner([(name, codes[feeds[name].dtype], None, True) for name in self.names], ["y"], self.program)

    def check(self, feeds: dict[str, Any]) -> None:
        (expected,) = evaluate(self.imported.graph, self.imported.weights, [feeds[n] for n in self.names], wide=True)
        answer = self.runner.run(feeds)["y"]
        np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-5)  # sums of up to 16 in f32, and of weights

    @property
    def relying(self) -> list[tuple[int, tuple[int, ...]]]:
        """Slot and key of the variants that rely on facts."""
        functions = [function for function in self.compiled.functions if function.uniform]
        own = {placed.slot for function in functions for placed in function.kernels}
        return [(v.slot, v.key) for v in self.compiled.plan.variants if v.kernel in own]

    @property
    def uses(self) -> int:
        """How often variants that rely on facts were called."""
        return sum(uses for slot, key, _, uses in self.program.variants() if (slot, key) in self.relying)


def chained(rows: int = 5, number: float = 0.5) -> dict[str, Any]:
    return {"x": floats(rows, 32), "m": np.full((rows, 32), number, np.float32)}


HALVES = Fact(1, "m", F32, 0.5)


def test_a_call_takes_the_kernel_of_its_facts() -> None:
    sample = Sample(chain(), chained(), HALVES)
    assert sample.compiled.saved > 0.5
    sample.check(chained())
    assert sample.uses == 1
    other = chained()
    other["m"][4, 31] = 0.25  # the last element
    sample.check(other)
    sample.check(chained(number=0.25))
    sample.check(chained(rows=4))
    assert sample.uses == 1
    sample.check(chained())
    assert sample.uses == 2


def test_inputs_that_cannot_be_looked_through_take_the_open_kernel() -> None:
    sample = Sample(chain(), chained(), HALVES)
    strided = chained()
    strided["m"] = np.full((5, 64), 0.5, np.float32)[:, ::2]
    sample.check(strided)
    assert sample.uses == 0


def test_facts_about_large_inputs_are_not_relied_on() -> None:
    rows = LIMIT_BYTES // (4 * 32)
    assert Sample(chain(), chained(rows), HALVES).relying
    assert not Sample(chain(), chained(rows + 1), HALVES).relying


def test_a_model_whose_sizes_are_all_closed_may_rely_on_facts() -> None:
    sample = Sample(chain([5, 32]), chained(), HALVES)
    assert len(sample.compiled.plan.variants) == 1
    sample.check(chained())
    assert sample.uses == 1
    sample.check(chained(number=0.75))
    assert sample.uses == 1


def asked(tokens: int = 7) -> dict[str, Any]:
    ones, zeros = np.ones((2, tokens), np.int64), np.zeros((2, tokens), np.int64)
    return {"x": floats(2, tokens, 16), "mask": ones, "types": zeros}


ONES, ZEROS = Fact(1, "mask", I64, 1), Fact(2, "types", I64, 0)


def test_masks_and_embeddings_of_one_number() -> None:
    sample = Sample(attention(), asked(), ONES, ZEROS)
    texts = [repr(sample.compiled.programs[placed.slot]) for placed in sample.compiled.functions[-1].kernels]
    assert any(text.startswith("program attention") for text in texts)
    assert {key[-1] for _, key in sample.relying} == {1, 2}  # each relies on what it reads alone
    sample.check(asked())
    whole = sample.uses
    assert whole == len(sample.compiled.functions[-1].kernels)
    masked = asked()
    masked["mask"][1, 3:] = 0
    sample.check(masked)
    assert whole < sample.uses < 2 * whole  # those of the types still hold
    others = masked | {"types": masked["mask"]}
    uses = sample.uses
    sample.check(others)
    assert sample.uses == uses


def test_passing_over_variants_at_random_costs_nothing_but_time() -> None:
    sample = Sample(attention(), asked(), ONES, ZEROS)
    sample.program.miss_variants(0.5, seed=3)
    for _ in range(20):
        sample.check(asked())
    assert 0 < sample.uses < 20 * len(sample.relying) * 2


def test_every_kernel_is_proved_where_its_facts_hold() -> None:
    sample = Sample(attention(), asked(), ONES, ZEROS)
    numbers = {placed.slot for placed in sample.compiled.functions[-1].kernels}
    codes, proved = build(sample.compiled.programs, HOST), set()
    for case in placed_cases(sample.compiled, sample.weights):
        if numbers.intersection(case.slots):
            record = msgspec.msgpack.decode(case.case, type=CaseRecord)
            assert record.uniform
            proof = prove_code(record, [codes[slot] for slot in case.slots], HOST)
            assert proof.reason == ""
            proved.update(case.slots)
    assert proved == numbers


def test_a_kernel_for_another_number_is_refused() -> None:
    right, wrong = (Sample(chain(), chained(), Fact(1, "m", F32, number)) for number in (0.5, 0.25))
    slot = right.compiled.functions[-1].kernels[0].slot
    assert slot == wrong.compiled.functions[-1].kernels[0].slot
    (case,) = [case for case in placed_cases(right.compiled, right.weights) if case.slots == (slot,)]
    code = build(wrong.compiled.programs, HOST)[slot]
    proof = prove_code(msgspec.msgpack.decode(case.case, type=CaseRecord), [code], HOST)
    assert proof.reason


def twins() -> onnx.ModelProto:
    """Two places with one kernel and one size; facts are known of what one of them reads."""
    nodes = []
    for n, given in enumerate(("m", "k")):
        nodes += [node("Tanh", [given], [f"t{n}"]), node("Mul", ["x", f"t{n}"], [f"p{n}"])]
        nodes.append(node("Softmax", [f"p{n}"], [f"s{n}"], axis=-1))
        nodes.append(node("MatMul", [f"s{n}", "w"], [f"y{n}"]))
    nodes.append(node("Concat", ["y0", "y1"], ["y"], axis=0))
    weights = [numpy_helper.from_array(floats(32, 8), "w")]
    inputs = [value(name, ["n", 32]) for name in ("x", "m", "k")]
    return model(nodes, inputs, [value("y", ["o", 8])], weights)


def test_places_that_share_a_slot_share_facts_or_have_none() -> None:
    feeds = chained() | {"k": np.full((5, 32), 0.5, np.float32)}
    one, both = Sample(twins(), feeds, HALVES), Sample(twins(), feeds, HALVES, Fact(2, "k", F32, 0.5))
    opened = one.compiled.functions[0].kernels
    softmaxes = [placed.slot for placed in opened if "exp" in repr(placed.kernel.program)]
    assert len(softmaxes) == 2
    assert len(set(softmaxes)) == 1  # or this test is about nothing
    assert not [slot for slot, _ in one.relying if slot == softmaxes[0]]
    for sample in (one, both):
        sample.check(feeds)
        sample.check(feeds | {"k": floats(5, 32)})


def test_numbers_that_do_not_fit_are_refused() -> None:
    sample = Sample(chain(), chained(), HALVES)
    functions = [function.native() for function in sample.compiled.plan.functions]
    for fact in ((2, b"\0" * 4), (-1, b"\0" * 4), (0, b""), (0, b"\0" * 3), (0, b"\0" * 16)):
        with pytest.raises(ValueError, match="fact"):
            _native.Program(functions, [lambda *_: ()], [], sample.compiled.plan.slots, [fact])
    (slot, key) = sample.relying[0]
    code = _native.Code(build(sample.compiled.programs, HOST))
    with pytest.raises(ValueError, match="relies on facts"):
        sample.program.add_variants([(slot, 0, (*key[:-1], 2), code.addresses[0], code, 1, 1, 0)])


@pytest.mark.parametrize("fact", [Fact(0, "x", 8, 1.0), Fact(0, "x", I64, 0.5), Fact(0, "x", F32, 0.1)])
def test_facts_that_no_tensor_can_have(fact: Fact) -> None:
    with pytest.raises(ValueError, match=r"x|type"):
        _ = fact.element
