"""What it costs that every kernel step chooses its kernel: plans of made encoders whose kernels do nothing.

Each slot gets so many variants; the one that fits is the last, and the others differ in their last number alone. What a
call takes above one without variants is the choosing, all of its kernel steps together. With a fact, half of the
variants rely on it that an input is all ones, one that fits among them; it is looked at in every call, and holds in all
of them or in none. One thread, this process.
"""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time_ns
from typing import Any

import numpy as np
from msgspec.structs import replace

from benchmarks.cases import model_path
from benchmarks.effort import Effort
from benchmarks.tables import header, row

CASES = {"mlp": (1, 64), "bert_mini": (1, 16), "bert_base": (1, 16)}
VARIANTS = (1, 4, 8, 32)
FACTS = (2, 8)  # variants, with a fact that holds, and with one that does not
ROUNDS, CALLS = 200, 400
_RETURN = {"x86_64": "31c0c3", "aarch64": "00008052c0035fd6"}  # a kernel that says that all is well


def choosing_benchmark(effort: Effort) -> dict[str, object]:
    """Prints one row a model: microseconds of a call without variants, and what choosing adds."""
    print("\nCalls whose kernels do nothing, µs: without variants, and what is added by choosing among so many.\n")
    print(header("model", "kernel steps", "none", *(_named(*case) for case in CASES_MEASURED[1:])))
    record: dict[str, object] = {}
    for model in (name for name in CASES if not effort.cases or name in effort.cases):
        steps, found = _measure(model, effort.rounds or ROUNDS, effort.calls or CALLS)
        none, *others = found.values()
        print(row(model, str(steps), f"{none:.2f}", *(f"+{other - none:.2f}" for other in others)))
        record[model] = {"kernel_steps": steps, "call_us": {_named(*case): us for case, us in found.items()}}
    return record


Case = tuple[int, bool | None]  # how many variants, and whether a fact holds; None: there is none
CASES_MEASURED: tuple[Case, ...] = (
    (0, None),
    *((count, None) for count in VARIANTS),
    *((count, holds) for count in FACTS for holds in (True, False)),
)


def _named(count: int, holds: bool | None) -> str:
    return f"{count}" + ("" if holds is None else ", a fact holds" if holds else ", a fact fails")


def _measure(model: str, rounds: int, calls: int) -> tuple[int, dict[Case, float]]:
    """The kernel steps of a call, and the least microseconds for each case, taken in turn."""
    made, feeds, steps = _prepared(model)
    loaded = {case: made(*case) for case in CASES_MEASURED}
    best = dict.fromkeys(loaded, float("inf"))
    for _ in range(rounds):
        for case, call in loaded.items():
            began = thread_time_ns()
            for _ in range(calls):
                call(**feeds)
            best[case] = min(best[case], (thread_time_ns() - began) / calls / 1e3)
    return steps, best


Call = Callable[..., Any]


def _prepared(model: str) -> tuple[Callable[[int, bool | None], Call], dict[str, Any], int]:
    """How to make a model with so many variants, what to call it with, and the steps of a call."""
    import tierup
    from tierup import _native
    from tierup.adapt.planning import make_plan
    from tierup.cli.inputs import gather_inputs
    from tierup.frontends.onnx import load_onnx
    from tierup.ir.facts import Aim, Fact
    from tierup.ir.types import TensorType
    from tierup.plan.program import StepCode
    from tierup.profile.machine import identify
    from tierup.runtime.executable import executable

    path = model_path(model)
    config = tierup.Config(force_tier=0, adapt=False, threads=1)
    shapes = tierup.load(path, config=config).inputs
    sizes = CASES[model]
    feeds, _ = gather_inputs(shapes, [], [f"{spec.name}={','.join(map(str, sizes))}" for spec in shapes], 0)
    planned = make_plan(load_onnx(path), Aim((tuple(np.shape(feeds[spec.name]) for spec in shapes),)))
    plan, code = planned.compiled.plan, _native.Code([bytes.fromhex(_RETURN[identify().architecture])])
    kernel = code.addresses[0]

    place, last = len(shapes) - 1, shapes[-1]
    feeds[last.name] = np.ones_like(feeds[last.name])
    assert isinstance(last.type, TensorType)

    def made(count: int, holds: bool | None) -> Call:
        loaded = tierup.load(path, config=config)
        facts = () if holds is None else (Fact(place, last.name, last.type.dtype.code, float(holds)),)
        program = executable(replace(plan, facts=facts), planned.weights)
        program.publish(dict.fromkeys(range(plan.slots), (kernel, code)))
        rows = []
        for variant in plan.variants if count else ():
            own = count if holds is None else count // 2
            keys = [*((*variant.key[:-1], -1 - number) for number in range(own - 1)), variant.key]
            keys += [] if holds is None else [(*key, 1) for key in keys]
            rows += [(variant.slot, variant.first, key, kernel, code, 1, 1, 0) for key in keys]
        program.add_variants(rows)
        loaded.program = program
        return loaded

    return made, feeds, plan.count(StepCode.KERNEL)
