"""Kernels for some sizes in front of the open one: they fit, answer the same, and come and go together."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.adapt.networks import encoder, perceptron
from tests.codegen.running import HOST
from tests.runtime.programs import F32, runner
from tests.runtime.test_programs import address, kernel_program, scaling, tensor
from tests.security.models import model, node, value
from tests.store.samples import saved, settings

import tierup
from tierup import _native
from tierup.adapt.quarantine import changed_kernels
from tierup.codegen.objects import build
from tierup.frontends.onnx import load_onnx
from tierup.ir.graph import Weights
from tierup.lower.text import print_program
from tierup.reference.evaluate import evaluate
from tierup.runtime.compiled import Compiled, compile_plan
from tierup.runtime.executable import executable
from tierup.runtime.kernels import publish_code
from tierup.store.objects import ObjectCache, program_digest

RANDOM = np.random.default_rng(5)


def floats(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def recurrent() -> onnx.ModelProto:
    """A layer whose kernel runs in rounds, all steps with one key."""
    nodes = [node("LSTM", ["x", "w", "r"], ["y", "h", "c"], hidden_size=6), node("Relu", ["y"], ["z"])]
    weights = [numpy_helper.from_array(floats(*s) * 0.3, n) for n, s in (("w", (1, 24, 5)), ("r", (1, 24, 6)))]
    return model(nodes, [value("x", ["t", "b", 5])], [value("z", ["t", 1, "b", 6])], weights)


def parted() -> onnx.ModelProto:
    """Kernels that write one value part by part, and two places with one open kernel and other sizes."""
    nodes = [
        node("Softmax", ["x"], ["p"], axis=-1),
        node("Concat", ["p", "x"], ["c"], axis=0),
        node("Softmax", ["c"], ["z"], axis=-1),
    ]
    return model(nodes, [value("x", ["n", 8])], [value("z", ["m", 8])], [])


MODELS: dict[str, tuple[onnx.ModelProto, Any]] = {
    "perceptron": (perceptron(), lambda n: [floats(n, 20)]),
    "encoder": (encoder(2), lambda n: [floats(2, n, 32), floats(2, 1, 1, n)]),
    "recurrent": (recurrent(), lambda n: [floats(n, 3, 5)]),
    "parted": (parted(), lambda n: [floats(n, 8)]),
}


class Sample:
    """A model with variants for some sizes."""

    def __init__(self, name: str, *sizes: int, refused: dict[str, str] | None = None) -> None:
        proto, self.draw = MODELS[name]
        self.imported = load_onnx(proto)
        self.weights = Weights()
        for digest in self.imported.weights:
            self.weights.add(self.imported.weights[digest], digest)
        signatures = [tuple(array.shape for array in self.draw(size)) for size in sizes]
        graph = self.imported.graph
        self.compiled: Compiled = compile_plan(graph, self.weights, HOST, signatures, refused=refused)
        self.program = executable(self.compiled.plan, self.weights)
        publish_code(self.program, build(self.compiled.programs, HOST), HOST, self.compiled.plan.variants)
        self.names = [graph.value_name(given) for given in graph.inputs]
        self.runner = runner([(given, F32, None, True) for given in self.names], ["y"], self.program)

    def check(self, size: int) -> None:
        inputs = self.draw(size)
        (expected,) = evaluate(self.imported.graph, self.imported.weights, inputs, wide=True)
        answer = self.runner.run(dict(zip(self.names, inputs, strict=True)))["y"]
        np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-5)  # sums of up to 64 in f32

    @property
    def uses(self) -> list[int]:
        return [uses for *_, uses in self.program.variants()]


@pytest.mark.parametrize("name", MODELS)
def test_variants_answer_for_their_sizes(name: str) -> None:
    sample = Sample(name, 4, 7)
    assert len(sample.compiled.plan.functions) == 1
    for function in sample.compiled.functions[1:]:
        assert len(function.kernels) == len(sample.compiled.functions[0].kernels)  # every region has one
    sample.check(5)
    assert sum(sample.uses) == 0
    for _ in range(2):
        sample.check(4)
        sample.check(7)
    assert all(sample.uses)
    before = sample.uses
    for size in (1, 9):
        sample.check(size)
    assert sample.uses == before


@pytest.mark.parametrize("name", MODELS)
def test_passing_variants_over_costs_nothing_but_time(name: str) -> None:
    sample = Sample(name, 4)
    sample.program.miss_variants(1.0)
    sample.check(4)
    assert sum(sample.uses) == 0
    sample.program.miss_variants(0.5, seed=3)
    for _ in range(20):
        sample.check(4)
    assert 0 < sum(sample.uses) < 20 * len(sample.compiled.functions[0].kernels) * 3


def test_variants_are_set_aside_and_come_back() -> None:
    sample = Sample("perceptron", 4)
    live = sample.program.variants()
    sample.program.exchange_variants()
    assert sample.program.variants() == []
    sample.check(4)
    sample.program.exchange_variants()
    assert sample.program.variants() == live


def test_a_refused_variant_leaves_its_place_to_the_open_kernel() -> None:
    whole = Sample("encoder", 4)
    variants = whole.compiled.plan.variants
    text = print_program(whole.compiled.programs[variants[0].kernel])
    sample = Sample("encoder", 4, refused={program_digest(text): "it is wrong"})
    assert sample.compiled.stand_ins == ()
    assert sample.compiled.plan.slots == whole.compiled.plan.slots
    assert len(sample.compiled.plan.variants) == len(variants) - 1
    assert text not in map(print_program, sample.compiled.programs)
    sample.check(4)


def test_sizes_that_no_call_can_have_are_not_closed() -> None:
    imported = load_onnx(perceptron())
    compiled = compile_plan(imported.graph, imported.weights, HOST, [((-1, 20),)])
    assert compiled.plan.variants == ()


def test_rows_that_do_not_fit_are_refused() -> None:
    loaded, kernel = kernel_program(), scaling(2.0)
    good = (0, 0, [3, 3], address(kernel), kernel, 3, 3, 0)
    for wrong, error in (
        ((1, *good[1:]), IndexError),
        ((0, 2, *good[2:]), ValueError),
        ((0, 0, [3], *good[3:]), ValueError),
        ((0, 0, [3, 3, 3], *good[3:]), ValueError),
        ((0, 0, [3, 3], 0, kernel, 3, 3, 0), ValueError),
        ((0, 0, [3, 3], address(kernel), kernel, -3, 3, 0), ValueError),
        ((0, 0, [3, 3], address(kernel), kernel, 3, 3, -1), ValueError),
    ):
        with pytest.raises(error):
            loaded.add_variants([good, wrong])
        assert loaded.variants() == []  # all of them or none
    with pytest.raises(ValueError, match="from 0 to 1"):
        loaded.miss_variants(1.5)


def test_a_full_slot_says_what_went() -> None:
    loaded, kernel = kernel_program(), scaling(2.0)
    loaded.publish({0: (address(kernel), kernel)})
    rows = [(0, 0, [n, n], address(kernel), kernel, n, n, 0) for n in range(33)]
    assert loaded.add_variants(rows) == [(0, (0, 0), 0)]
    model_ = runner([tensor("x", [-1])], ["y"], loaded)
    for n in range(1, 33):
        if n != 7:
            model_(x=np.ones(n, np.float32))
    assert loaded.add_variants([(0, 0, [50, 50], address(kernel), kernel, 50, 50, 0)]) == [(0, (7, 7), 0)]
    assert len(loaded.variants()) == 32


def test_code_goes_with_the_last_that_uses_it() -> None:
    loaded, kernel = kernel_program(), scaling(2.0)
    code = scaling(3.0)
    gone = weakref.ref(code)
    loaded.add_variants([(0, 0, [3, 3], address(code), code, 3, 3, 0)])
    loaded.publish({0: (address(kernel), kernel)})  # a new kernel has none
    del code
    gc.collect()
    assert gone() is None


def test_a_changed_variant_is_found(tmp_path: Any) -> None:
    path = saved(tmp_path, perceptron())
    tierup.load(path, config=settings(tmp_path, force_tier=2))(x=floats(4, 20))
    config = settings(tmp_path, force_tier=1)
    loaded = tierup.load(path, config=config)
    assert loaded.report().tier == 2
    assert loaded.program is not None
    assert changed_kernels(config, loaded.program, loaded._serving) == ()
    variant = loaded._serving.variants[0]
    key = loaded._serving.keys[variant.kernel]
    image = ObjectCache(config.cache_dir / "objects").get_digest(key, HOST)
    assert image is not None
    other = _native.Code([bytes([image[0] ^ 1]) + image[1:]])
    numbers = variant.range, variant.grain, variant.scratch
    loaded.program.add_variants([(variant.slot, variant.first, variant.key, other.addresses[0], other, *numbers)])
    assert changed_kernels(config, loaded.program, loaded._serving) == (key,)
