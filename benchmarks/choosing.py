"""What it costs that every kernel step chooses its kernel: plans of made encoders whose kernels do nothing.

Each slot gets so many variants; the one that fits is the last, and the others differ in their last number alone. What a
call takes above one without variants is the choosing, all of its kernel steps together. One thread, this process.
"""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time_ns
from typing import Any

import numpy as np

from benchmarks.cases import model_path
from benchmarks.effort import Effort
from benchmarks.tables import header, row

CASES = {"mlp": (1, 64), "bert_mini": (1, 16), "bert_base": (1, 16)}
VARIANTS = (1, 4, 8, 32)
ROUNDS, CALLS = 200, 400
_RETURN = {"x86_64": "31c0c3", "aarch64": "00008052c0035fd6"}  # a kernel that says that all is well


def choosing_benchmark(effort: Effort) -> dict[str, object]:
    """Prints one row a model: microseconds of a call without variants, and what choosing adds."""
    print("\nCalls whose kernels do nothing, µs: without variants, and what is added by choosing among so many.\n")
    print(header("model", "kernel steps", "none", *(f"{count} variants" for count in VARIANTS)))
    record: dict[str, object] = {}
    for model in (name for name in CASES if not effort.cases or name in effort.cases):
        steps, found = _measure(model, effort.rounds or ROUNDS, effort.calls or CALLS)
        added = (f"+{found[count] - found[0]:.2f}" for count in VARIANTS)
        print(row(model, str(steps), f"{found[0]:.2f}", *added))
        record[model] = {"kernel_steps": steps, "call_us": found}
    return record


def _measure(model: str, rounds: int, calls: int) -> tuple[int, dict[int, float]]:
    """The kernel steps of a call, and the least microseconds for each number of variants, taken in turn."""
    plain, feeds, keys, steps = _prepared(model)
    loaded = {count: plain(count, keys) for count in (0, *VARIANTS)}
    best = dict.fromkeys(loaded, float("inf"))
    for _ in range(rounds):
        for count, call in loaded.items():
            began = thread_time_ns()
            for _ in range(calls):
                call(**feeds)
            best[count] = min(best[count], (thread_time_ns() - began) / calls / 1e3)
    return steps, best


Call = Callable[..., Any]


def _prepared(model: str) -> tuple[Callable[[int, Any], Call], dict[str, Any], Any, int]:
    """How to make a model with so many variants, what to call it with, the keys of the call, and its steps."""
    import tierup
    from tierup import _native
    from tierup.adapt.planning import make_plan
    from tierup.cli.inputs import gather_inputs
    from tierup.frontends.onnx import load_onnx
    from tierup.ir.facts import Aim
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

    def made(count: int, variants: Any) -> Call:
        loaded = tierup.load(path, config=config)
        program = executable(plan, planned.weights)
        program.publish(dict.fromkeys(range(plan.slots), (kernel, code)))
        rows = []
        for variant in variants if count else ():
            others = [(*variant.key[:-1], -1 - number) for number in range(count - 1)]
            rows += [(variant.slot, variant.first, key, kernel, code, 1, 1, 0) for key in (*others, variant.key)]
        program.add_variants(rows)
        loaded.program = program
        return loaded

    return made, feeds, plan.variants, plan.count(StepCode.KERNEL)
