"""A trial in a worker: two plans of one model timed in turn, on sampled or drawn inputs.

In: a model file, the entry of the candidate, who answers now, and calls. Out: what was measured for each signature.
Both run whole, with packed weights and as many threads as they will have, one call of each after the other, so that
each finds the caches as the other left them: weights that are larger than the last-level cache have to be read anew as
they have to in service, be they only some of the model's, in turn. Two plans are also timed as a call runs while
another one has the pool of threads: which of the two it will be, the traffic decides, and a plan may lose in neither.
Plans that use the pool get all cores of the model; others are tried where this worker was put, out of the way of calls.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import replace

from tierup import _native
from tierup.adapt.aside import Cores, keep_process_to
from tierup.adapt.compare import decided, is_far, log_gain, saved, verdict
from tierup.adapt.messages import CallRecord, Failure, TriedPlan, TryPlan
from tierup.adapt.proof import REASON_LIMIT_CHARS
from tierup.adapt.tensors import array_of
from tierup.config import Config
from tierup.errors import InputError
from tierup.events import Compared
from tierup.ir.facts import MOST_STRAYS, Signature
from tierup.ir.types import Array
from tierup.plan.program import StepCode
from tierup.profile.identity import identify
from tierup.runtime.executable import executable
from tierup.runtime.feeds import Input, Output, native_inputs
from tierup.runtime.origin import Origin
from tierup.runtime.setup import configure
from tierup.runtime.warm import Warm, restore
from tierup.store.plans import Plans
from tierup.store.records import AboutRecord, EntryRecord, type_of
from tierup.store.source import FileSource

if TYPE_CHECKING:
    from tierup.frontends.onnx import Imported

# A block of calls gives one time, that of its fastest call: others were interrupted by whoever goes first. It takes
# about so long, and has at least so many calls of up to so many seconds: one that is interrupted takes some tens of ms.
_BLOCK_S, _BLOCK_CALLS = 0.002, ((5, 0.01), (2, 0.05))
_LEAST_PAIRS, _MOST_PAIRS = 3, 60
_PATIENCE = 3  # times the budget, where noise could still hide a gain: a plan is turned away for long
_SETS = 3  # of drawn inputs, which calls rotate over
_CACHES = 2  # times the last-level cache: weights that a trial packs, so that each is read from memory
# A candidate that is so many times as fast as the baseline in single calls is faster, whatever interrupts it. A call
# that takes long is hardly changed by that, and shares cores and memory with the live ones for all of its time.
_FAR, _FAR_LONG, _LONG_S = 2.0, 1.5, 0.1
# A short call of the baseline is worth running again: where others want the cores, all live ones may have been
# interrupted. On a machine of load 10, kernels of 2.5 ms went live in place of a baseline of 0.1, in 8 of 200 trials.
_SHORT_S = 0.01

Feeds = dict[str, Any]
Run = Callable[[Feeds], Any]
Incumbent = Callable[[Feeds], Run]  # what answers now, for a trial on these inputs


def try_plan(job: TryPlan) -> TriedPlan | Failure:
    """Time the candidate against the incumbent on every call of the job."""
    source = FileSource(job.path, job.stamp)
    config = Config(threads=job.threads, cache_dir=job.cache_dir, force_tier=0)
    configure(config, all_dtypes=False)  # `restore` registers what the plan needs
    plans, origin = Plans(job.cache_dir, job.threads), Origin(job.path, partial(_import, job.path, source.stamp))
    entry = msgspec.msgpack.decode(job.entry, type=EntryRecord)
    most_bytes = _most_bytes(entry, job.threads)
    warm = restore(plans.open(source, entry), origin, config, most_bytes=most_bytes)
    if job.incumbent is None:
        incumbent = _baseline(entry.about, origin)
    else:
        found = plans.find(source, job.parts)
        if found is None or found.record.plan.aim != job.incumbent:
            return Failure("the plan that answers now is not in the cache")
        before = restore(found, origin, config, warm.serving.constants, most_bytes=most_bytes)
        incumbent = _kernels(entry.about, before.program)
    runners = incumbent, _runner(entry.about, warm.program)
    budget_s = job.budget_s / max(1, len(job.calls) * len(job.ways))
    calls = [call if call.signature is not None else _any_call(origin) for call in job.calls]
    uses = _uses()
    try:
        first_s, strays = _answered(entry, warm, runners[1], calls)
    except _Fails as fails:
        return TriedPlan((), failed=str(fails)[:REASON_LIMIT_CHARS])
    if strays and len(entry.plan.strays) < MOST_STRAYS:
        return TriedPlan((), strays)
    single = job.incumbent is None
    for call in () if single else calls:
        feeds = _given(call) if call.inputs else _drawn(entry, call, 0)
        incumbent(feeds)(feeds)
    if _uses() - uses > len(calls) * (1 if single else 2):  # jobs of the pool are counted beside calls
        keep_process_to(Cores(job.cores))
    compared: list[Compared] = []
    for call, taken_s in zip(calls, first_s, strict=True):
        for alone in job.ways:
            far = single and bool(compared) and all(found.gain > 0.5 for found in compared)
            compared.append(_compare_on(alone, entry, call, *runners, budget_s, single, far, taken_s))
    return TriedPlan(tuple(compared))


def _uses() -> int:
    return sum(_native.core_uses(sys.maxsize))


def _most_bytes(entry: EntryRecord, threads: int) -> int:
    """Of packed weights: so many that each is read from memory, as it is in service where they do not fit into the
    caches. All of them where values decide what runs: with other weights it might not end."""
    decides = any(step[0] == StepCode.BRANCH for function in entry.plan.functions for step in function.steps)
    caches = identify().caches
    if decides or not caches:
        return sys.maxsize
    return _CACHES * caches[-1].size_bytes * -(-threads // caches[-1].shared_by)


class _Fails(Exception):
    """The candidate has no answer to a call that has one."""


def _answered(
    entry: EntryRecord, warm: Warm, candidate: Run, calls: Sequence[CallRecord]
) -> tuple[list[float], tuple[Signature, ...]]:
    """Each call once, also what goes wrong does so here: how long it took the candidate, and the signatures of those
    that break what it assumes of sizes, so that the baseline has to answer. Sampled calls were answered before: what
    fails on one is wrong."""
    first_s: list[float] = []
    found: list[Signature] = []
    for call in calls:
        before, feeds = warm.serving.deopts, _given(call) if call.inputs else _drawn(entry, call, 0)
        try:
            first_s.append(_one_call(candidate, [feeds]))
        except InputError as error:
            if call.inputs:
                raise _Fails(str(error)) from error
            raise
        if warm.serving.deopts > before and call.signature is not None:
            found.append(call.signature)
    return first_s, tuple(signature for signature in found if signature not in entry.plan.strays)


def _import(path: str, stamp: tuple[int, ...]) -> Imported:
    from tierup.adapt.imports import LAST_IMPORT  # the front end: a plan that takes another one's place needs none

    return LAST_IMPORT.get(path, stamp)


def _runner(about: AboutRecord, program: _native.Program) -> Run:
    inputs = [Input(v.name, type_of(v.type), v.shape, v.onnx_type, v.required) for v in about.inputs]
    outputs = [Output(v.name, type_of(v.type), v.shape, v.onnx_type) for v in about.outputs]
    runner = _native.Runner(native_inputs(inputs), [output.name for output in outputs])
    runner.program = program
    return runner.call_dict


def _baseline(about: AboutRecord, origin: Origin) -> Incumbent:
    """Made when it is first needed, which it rarely is: mostly live calls have shown what it takes. It is called once
    then, since the first call of a program takes longer."""
    from tierup.plan.baseline import baseline

    made: list[Run] = []

    def incumbent(feeds: Feeds) -> Run:
        if not made:
            imported = origin.imported()
            made.append(_runner(about, executable(baseline(imported.graph), imported.weights)))
            made[0](feeds)
        return made[0]

    return incumbent


def _kernels(about: AboutRecord, program: _native.Program) -> Incumbent:
    run = _runner(about, program)
    return lambda feeds: run


def _compare_on(alone: bool, *arguments: Any) -> Compared:
    """Compare with the pool of threads, or as while another call has it."""
    if not alone:
        return _compare(*arguments)
    _native.hold_pool()
    try:
        return replace(_compare(*arguments), alone=True)
    finally:
        _native.let_pool_go()


def _compare(
    entry: EntryRecord,
    call: CallRecord,
    incumbent: Incumbent,
    candidate: Run,
    budget_s: float,
    single: bool,
    far: bool = False,
    first_s: float = 0.0,
) -> Compared:
    """Blocks of calls in turn, until it is decided or the time is over; where noise is large, some time longer. With
    `single`, single calls first, and one of each if all other signatures were decided by far (`far`); `first_s` is what
    the first one took the candidate."""
    sets = [_given(call) if call.inputs else _drawn(entry, call, 0)]
    # Single calls tell enough where one is several times as fast, as kernels are beside the baseline. Beside other
    # kernels they do not: one that was interrupted takes many times as long, too.
    is_long = call.live_s > _LONG_S
    turns, times = (1 if far or is_long else 2) if single else 0, _FAR_LONG if is_long else _FAR
    pairs: list[tuple[float, float]] = []
    if single and call.live_s > _SHORT_S and first_s:  # what the baseline takes, live calls have shown
        pairs = [(call.live_s, first_s if turn == 0 else _one_call(candidate, sets)) for turn in range(turns)]
        if not is_far(pairs, times):  # the first call of a program takes longer
            pairs = [(call.live_s, _one_call(candidate, sets)) for _ in range(turns)]
    if not (pairs and is_far(pairs, times)):
        answers = incumbent(sets[0])
        pairs = [_pair(turn, answers, candidate, sets, _one_call) for turn in range(turns)]
        if not decided(pairs) and not (pairs and is_far(pairs, times)):
            sets += [] if call.inputs else [_drawn(entry, call, seed) for seed in range(1, _SETS)]
            for feeds in sets:
                candidate(feeds)
                if not single:
                    answers(feeds)
            pairs = _blocks(answers, candidate, sets, budget_s)
    gain, margin = log_gain(pairs)
    before, after = (1e6 * median(times) for times in zip(*pairs, strict=True))
    return Compared(call.signature or (), len(pairs), before, after, saved(gain), margin)


def _blocks(incumbent: Run, candidate: Run, sets: list[Feeds], budget_s: float) -> list[tuple[float, float]]:
    pairs: list[tuple[float, float]] = []
    began_s = time.monotonic()
    while len(pairs) < _MOST_PAIRS and not decided(pairs):
        if len(pairs) >= _LEAST_PAIRS and _is_over(pairs, time.monotonic() - began_s, budget_s):
            break
        pairs.append(_pair(len(pairs), incumbent, candidate, sets, _block))
    return pairs


def _is_over(pairs: list[tuple[float, float]], spent_s: float, budget_s: float) -> bool:
    hidden = verdict([log_gain(pairs)]) == "unclear"
    return spent_s > (_PATIENCE * budget_s if hidden else budget_s)


def _pair(
    turn: int,
    incumbent: Run,
    candidate: Run,
    sets: list[Feeds],
    seconds: Callable[[Run, list[Feeds]], float],
) -> tuple[float, float]:
    """Times of both, one after the other; who is first changes with the turn."""
    if turn % 2:
        new = seconds(candidate, sets)
        return seconds(incumbent, sets), new
    old = seconds(incumbent, sets)
    return old, seconds(candidate, sets)


def _one_call(run: Run, sets: list[Feeds]) -> float:
    begin = time.perf_counter()
    run(sets[0])
    return time.perf_counter() - begin


def _block(run: Run, sets: list[Feeds]) -> float:
    """The fastest call of a block."""
    fastest, spent, calls = math.inf, 0.0, 0
    while spent < _BLOCK_S or any(calls < least and fastest < long_s for least, long_s in _BLOCK_CALLS):
        begin = time.perf_counter()
        run(sets[calls % len(sets)])
        taken = time.perf_counter() - begin
        fastest, spent, calls = min(fastest, taken), spent + taken, calls + 1
    return fastest


def _any_call(origin: Origin) -> CallRecord:
    """Sizes with which the model's own sizes make sense."""
    from tierup.ir.types import TensorType
    from tierup.rewrite.assume import draw_examples

    graph = origin.imported().graph
    sizes = next(iter(draw_examples(graph)), {})
    signature = []
    for position, value in enumerate(graph.inputs):
        kind = graph.type(value)
        shape = kind.shape if isinstance(kind, TensorType) else None
        if shape is None:
            raise InputError("the model says too little about its inputs to draw any")
        dims = [dim if isinstance(dim, int) else sizes.get((position, axis)) for axis, dim in enumerate(shape)]
        if None in dims:
            raise InputError("no sizes were found that the model can have")
        signature.append(tuple(dim for dim in dims if dim is not None))
    return CallRecord(tuple(signature))


def _given(call: CallRecord) -> Feeds:
    return {tensor.name: array_of(tensor) for tensor in call.inputs}


def _drawn(entry: EntryRecord, call: CallRecord, seed: int) -> Feeds:
    """Inputs with these shapes, for which the candidate's facts hold. Floats are normal; integers are 0 or 1: ids,
    masks and places nearly everywhere."""
    random, about = np.random.default_rng(seed), entry.about
    assumed = {fact.name: fact.value for fact in entry.plan.facts}
    if call.signature is None or len(call.signature) != len(about.inputs):
        raise InputError("only calls whose inputs are all tensors can be drawn")
    feeds: Feeds = {}
    for value, shape in zip(about.inputs, call.signature, strict=True):
        kind = type_of(value.type)
        dtype: np.dtype[Any] | None = getattr(getattr(kind, "dtype", None), "numpy", None)
        if dtype is None or dtype.kind == "O":
            raise InputError(f"input '{value.name}' is no tensor of numbers, and cannot be drawn")
        drawn: Array = random.integers(0, 2, shape) if dtype.kind in "iub" else random.standard_normal(shape)
        if value.name in assumed:
            drawn = np.full(shape, assumed[value.name])
        feeds[value.name] = drawn.astype(dtype)
    return feeds
