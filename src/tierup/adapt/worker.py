"""What a worker process does: it takes requests from its parent one after another, and answers each.

It ends with its parent, whatever it is doing then, and a timer of the kernel's ends it in a job that takes too long,
even if Python can run no thread any more.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tierup.adapt.messages import (
    CheckCall,
    CheckedCall,
    Compile,
    Compiled,
    Failure,
    Identified,
    Identify,
    Job,
    PlanModel,
    PlannedModel,
    Prove,
    Ready,
    Recall,
    Recalled,
    Remember,
    Remembered,
    Reply,
    TriedPlan,
    TryPlan,
    failure,
    pack,
    receive,
)
from tierup.adapt.meter import Meter
from tierup.adapt.proof import Proof
from tierup.adapt.start import IDLE_NICENESS
from tierup.adapt.watch import watch_parent
from tierup.store.build_cost import BuildCost
from tierup.store.rows import Decision, Quarantine, Row
from tierup.store.versions import emitter_version

if TYPE_CHECKING:
    from tierup.store.learned import Store

# Of a core, of which a worker that has stepped back does not rest: checks of live calls that took much longer would be
# too rare to find a wrong kernel soon.
_LEAST_SHARE = 0.1
_MEMORY_BYTES = 4 << 30  # at least: LLVM needs some hundred MiB for the largest kernels, a plan what its weights take


def work(descriptor: int, parent: int) -> None:
    """Answer requests that come by this socket until the parent is gone."""
    channel = socket.socket(fileno=descriptor)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the thread that started us may have had its own ideas
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    watch_parent(channel, parent)
    _limit_memory()
    channel.sendall(pack(Ready(emitter_version())))
    for request in receive(channel):
        signal.setitimer(signal.ITIMER_PROF, request.limit_s)
        meter = Meter()
        with _rests(request.job):
            reply = _answer(request.job)
        signal.setitimer(signal.ITIMER_PROF, 0)
        channel.sendall(pack(meter.spent()) + reply)


@contextmanager
def _rests(job: Job) -> Iterator[None]:
    """If this worker has stepped back, it rests now and then, but not in what is timed: see native/src/rests.hpp."""
    if os.getpriority(os.PRIO_PROCESS, 0) < IDLE_NICENESS or isinstance(job, TryPlan):
        yield
        return
    from tierup import _native  # with NumPy: one that presses begins without them

    _native.begin_rests(_LEAST_SHARE)
    try:
        yield
    finally:
        _native.end_rests()


def _answer(job: Job) -> bytearray:
    try:
        return pack(_ANSWERS[type(job)](job))
    except Exception as error:  # a job that fails is an answer; only a crash is none
        return pack(failure(error))


def _compile(job: Compile) -> Compiled:
    from tierup.adapt.compiling import compile_texts  # LLVM: a third of a second, that others may need more
    from tierup.codegen.objects import leave_addresses

    leave_addresses()
    return Compiled(tuple(compile_texts(job.programs, job.target)))


def _plan(job: PlanModel) -> PlannedModel | Failure:
    from tierup.adapt.planning import plan_model  # the front end, the op table: most workers only compile

    return plan_model(job)


def _prove(job: Prove) -> Proof:
    from tierup.adapt.prove import prove_job  # the reference, the tile programs: most workers only compile
    from tierup.reference.threads import ONE_BLAS_THREAD

    ONE_BLAS_THREAD.keep()
    return prove_job(job)


def _try(job: TryPlan) -> TriedPlan | Failure:
    from tierup.adapt.contest import try_plan

    return try_plan(job)


def _remember(job: Remember) -> Remembered:
    from tierup.store.learned import Store

    with Store(job.store) as store:
        store.put([_merged(store, row) for row in job.rows])
        return Remembered(store.counters.written, store.counters.ignored)


def _recall(job: Recall) -> Recalled:
    from tierup.store.learned import Store

    with Store(job.store) as store:
        costs = store.all(BuildCost) if job.machine else ()
        return Recalled(
            tuple(found.row for found in store.find(Quarantine, job.kernels).values()),
            tuple(found.row for found in costs if found.row.machine == job.machine),
        )


def _merged(store: Store, row: Row) -> Row:
    """A row that counts, with what is there already."""
    if isinstance(row, Decision):
        return _counted(store, row)
    if isinstance(row, BuildCost):
        known = store.get(BuildCost, row.key)
        return row if known is None else known.row + row
    return row


def _counted(store: Store, decision: Decision) -> Decision:
    """How often such a plan was turned away in a row."""
    if decision.outcome == "swapped":
        return decision
    known = store.get(Decision, decision.key)
    return replace(decision, failures=min(1000, 1 + (0 if known is None else known.row.failures)))


def _check(job: CheckCall) -> CheckedCall:
    from tierup.adapt.check import check_call

    return check_call(job)


def _identify(job: Identify) -> Identified:
    from tierup.store.source import FileSource

    return Identified(FileSource(job.path, job.stamp).fingerprint(threads=1))


_ANSWERS: dict[type[Job], Callable[[Any], Reply]] = {
    Compile: _compile,
    PlanModel: _plan,
    Prove: _prove,
    TryPlan: _try,
    Remember: _remember,
    Recall: _recall,
    CheckCall: _check,
    Identify: _identify,
}


def _limit_memory() -> None:
    """Bound what it allocates. Files that it maps do not count: a model's weights may be larger than memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[5]) * resource.getpagesize()
    half = os.sysconf("SC_PHYS_PAGES") * resource.getpagesize() // 2
    wanted, most = used + max(_MEMORY_BYTES, half), resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is expected, and written down elsewhere
