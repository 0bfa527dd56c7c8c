"""One typed stream of what happened to a model: planned, built, proved, tried, swapped, and what went back out.

Every step that changes a model, or that was decided against, is an event with its reason and numbers. Reports, logs,
the command line and pages read this stream and nothing else. It is bounded: the oldest events go, and are counted.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import islice

import msgspec

from tierup.logs import tell

KEPT = 1000

Shapes = tuple[tuple[int, ...], ...]


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """The model can answer. `warm`: its plan came out of the cache."""

    tier: int
    warm: bool

    def __str__(self) -> str:
        return f"loaded on tier {self.tier}" + (" from the plan cache" if self.warm else "")


class Queued(msgspec.Struct, frozen=True, tag="queued"):
    """A better plan is wanted; so many models wait before it."""

    tier: int
    waiting: int
    signatures: tuple[Shapes, ...] = ()
    facts: tuple[str, ...] = ()
    strays: tuple[Shapes, ...] = ()

    def __str__(self) -> str:
        closed = f" for {shapes_text(self.signatures)}" if self.signatures else ""
        closed += f" where {' and '.join(self.facts)}" if self.facts else ""
        closed += f", with functions for calls like {shapes_text(self.strays)}" if self.strays else ""
        return f"tier {self.tier} queued{closed}, {self.waiting} before it"


class Strayed(msgspec.Struct, frozen=True, tag="strayed"):
    """Sizes that the plan takes to be equal were not in so many of so many calls. Those like these signatures are to
    get functions of their own."""

    turned_away: int
    calls: int
    strays: tuple[Shapes, ...]

    def __str__(self) -> str:
        said = f"sizes that are taken to be equal were not in {self.turned_away} of {self.calls} calls"
        return f"{said}: calls like {shapes_text(self.strays)} are to get functions of their own"


class Planned(msgspec.Struct, frozen=True, tag="planned"):
    """`saved` is the share of the kernels' work that facts are expected to save."""

    kernels: int
    seconds: float
    facts: tuple[str, ...] = ()
    saved: float = 0.0

    def __str__(self) -> str:
        said = f"planned {self.kernels} kernels in {self.seconds:.2f} s"
        return f"{said}, {100 * self.saved:.2g}% less to do where {' and '.join(self.facts)}" if self.facts else said


class Built(msgspec.Struct, frozen=True, tag="built"):
    """Kernels that were compiled, and those that the cache had."""

    compiled: int
    cached: int
    seconds: float

    def __str__(self) -> str:
        return f"built {self.compiled} kernels in {self.seconds:.2f} s, {self.cached} from the cache"


class Proved(msgspec.Struct, frozen=True, tag="proved"):
    """`worst` is the largest error in units of eps · B."""

    kernels: int
    worst: float
    seconds: float

    def __str__(self) -> str:
        return f"proved {self.kernels} kernels in {self.seconds:.2f} s, errors up to {self.worst:.2g} eps·B"


class Compared(msgspec.Struct, frozen=True, tag="compared"):
    """One signature in a trial: medians of both, the share of time that is saved, and what noise could feign of its
    logarithm. `alone`: while another call had the pool of threads."""

    signature: Shapes
    pairs: int
    incumbent_us: float
    candidate_us: float
    gain: float
    margin: float
    alone: bool = False

    def __str__(self) -> str:
        where = " on one thread" if self.alone else ""
        least, most = (1 - (1 - self.gain) * math.exp(noise) for noise in (self.margin, -self.margin))
        return (
            f"{_shape_text(self.signature)}{where}: {micros(self.incumbent_us)} to {micros(self.candidate_us)}, "
            f"{100 * self.gain:+.1f}% saved ({100 * least:+.1f} to {100 * most:+.1f}%), {self.pairs} pairs"
        )


class Tried(msgspec.Struct, frozen=True, tag="tried"):
    """Candidate and incumbent were timed in turn in a worker; or `why_not` says why they could not be."""

    better: bool
    compared: tuple[Compared, ...]
    seconds: float
    why_not: str = ""

    def __str__(self) -> str:
        if self.why_not:
            return f"not tried: {self.why_not}"
        verdict = "faster" if self.better else "not faster"
        return f"tried in {self.seconds:.2f} s, {verdict}: " + "; ".join(map(str, self.compared))


class Packed(msgspec.Struct, frozen=True, tag="packed"):
    """The weights of the plan that is live now were packed for its kernels; so many calls waited for that."""

    seconds: float
    waited: int

    def __str__(self) -> str:
        return f"packed weights in {self.seconds:.2f} s, {self.waited} call{'s'[: self.waited != 1]} waited for that"


class Spent(msgspec.Struct, frozen=True, tag="spent"):
    """What a climb took: of each stage the seconds of one core and the most memory of a worker, in bytes; and how many
    seconds were expected."""

    stages: dict[str, tuple[float, int]]
    expected_s: float

    def __str__(self) -> str:
        total_s = sum(core_s for core_s, _ in self.stages.values())
        parts = (f"{name} {core_s:.2f} s, {peak >> 20} MiB" for name, (core_s, peak) in self.stages.items())
        return f"took {total_s:.2f} s of one core, {self.expected_s:.2g} s expected: {'; '.join(parts)}"


class Dropped(msgspec.Struct, frozen=True, tag="dropped"):
    """A job that waited until nobody needed it."""

    tier: int
    reason: str

    def __str__(self) -> str:
        return f"tier {self.tier} dropped from the queue: {self.reason}"


class Swapped(msgspec.Struct, frozen=True, tag="swapped"):
    before: int
    tier: int
    kernels: int
    facts: tuple[str, ...] = ()
    strays: tuple[Shapes, ...] = ()

    def __str__(self) -> str:
        relying = f", some where {' and '.join(self.facts)}" if self.facts else ""
        relying += f", some for calls like {shapes_text(self.strays)}" if self.strays else ""
        return f"swapped from tier {self.before} to tier {self.tier}, {self.kernels} kernels{relying}"


class Displaced(msgspec.Struct, frozen=True, tag="displaced"):
    """A slot has no room for more variants: the one for these sizes, which was used so often, is gone."""

    slot: int
    key: tuple[int, ...]
    uses: int

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.key))
        return f"slot {self.slot} is full: its kernel for sizes {sizes} is gone, which was used {self.uses} times"


class Confirmed(msgspec.Struct, frozen=True, tag="confirmed"):
    """On live calls, too, the new plan is no slower than what it replaced."""

    tier: int
    reason: str

    def __str__(self) -> str:
        return f"tier {self.tier} confirmed on live calls: {self.reason}"


class Suspected(msgspec.Struct, frozen=True, tag="suspected"):
    """The plan may not pay on live calls: from now on both answer, drawn at random, until it is decided."""

    tier: int
    reason: str

    def __str__(self) -> str:
        return f"tier {self.tier} compared on live calls: {self.reason}"


class Thinned(msgspec.Struct, frozen=True, tag="thinned"):
    """So many variants were taken out of the plan that answers, and so many stay."""

    gone: int
    left: int
    reason: str

    def __str__(self) -> str:
        return f"took {self.gone} of {self.gone + self.left} variants out: {self.reason}"


class RolledBack(msgspec.Struct, frozen=True, tag="rolled back"):
    before: int
    tier: int
    reason: str

    def __str__(self) -> str:
        return f"rolled back from tier {self.before} to tier {self.tier}: {self.reason}"


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A plan that does not go live; `stage` is where that was decided."""

    stage: str
    reason: str

    def __str__(self) -> str:
        return f"refused at {self.stage}: {self.reason}"


class Quarantined(msgspec.Struct, frozen=True, tag="quarantined"):
    """Live calls got wrong answers: these kernels do not serve again. `call` is the number of the call."""

    kernels: tuple[str, ...]
    call: int
    reason: str

    def __str__(self) -> str:
        return f"quarantined {len(self.kernels)} kernels after call {self.call}: {self.reason}"


class StoreIgnored(msgspec.Struct, frozen=True, tag="store ignored"):
    """What was learned could not be read or kept; nothing else hangs on it."""

    reason: str

    def __str__(self) -> str:
        return f"the store was not used: {self.reason}"


class NotKept(msgspec.Struct, frozen=True, tag="not kept"):
    """A plan that serves is not on disk: the next process begins anew."""

    reason: str

    def __str__(self) -> str:
        return f"the next process does not start with this plan, which is not kept: {self.reason}"


class Evicted(msgspec.Struct, frozen=True, tag="evicted"):
    """Something bounded was full: what was used least lately went. `total` is how many so far."""

    what: str
    total: int
    kept: int

    def __str__(self) -> str:
        return f"{self.total} {self.what} evicted so far, {self.kept} kept"


Event = (
    Loaded | Queued | Strayed | Dropped | Planned | Built | Proved | Tried | Packed | Spent | Swapped | Displaced
    | Confirmed | Suspected | RolledBack | Thinned | Refused | Quarantined | StoreIgnored | NotKept | Evicted
)  # fmt: skip


class Entry(msgspec.Struct, frozen=True):
    """An event, and when it was: the number of seconds since 1970, and how many calls there were before."""

    at_s: float
    calls: int
    event: Event

    def to_dict(self) -> dict[str, object]:
        """Plain data: the event's name, its fields, and a sentence."""
        fields: dict[str, object] = msgspec.to_builtins(self.event)
        name = fields.pop("type")
        return {"at_s": self.at_s, "calls": self.calls, "event": name, **fields, "text": str(self.event)}


class Events:
    """The stream of one model. Threads may share it."""

    def __init__(self, kept: int = KEPT) -> None:
        self.calls: Callable[[], int] = int  # how many calls there were; whoever counts them says how to ask
        self.name = ""
        self._entries: deque[Entry] = deque(maxlen=kept)
        self._lock = threading.Lock()
        self._total = 0

    def add(self, event: Event) -> None:
        """Something happened now."""
        entry = Entry(time.time(), self.calls(), event)
        with self._lock:
            self._entries.append(entry)
            self._total += 1
        tell(__name__, "model %r: %s", self.name, event)

    def all(self) -> tuple[Entry, ...]:
        """What is kept, the oldest first."""
        with self._lock:
            return tuple(self._entries)

    def since(self, number: int) -> tuple[tuple[Entry, ...], int]:
        """What came after the first so many events, as far as it is kept, and how many there are now."""
        with self._lock:
            new = min(self._total - number, len(self._entries))
            return tuple(islice(self._entries, len(self._entries) - new, None)), self._total

    @property
    def dropped(self) -> int:
        """How many are no longer kept."""
        with self._lock:
            return self._total - len(self._entries)

    def forked(self) -> None:
        """In a forked child: another thread may have held the lock."""
        self._lock = threading.Lock()


def shapes_text(signatures: tuple[Shapes, ...]) -> str:
    """Signatures as people read them."""
    return "; ".join(map(_shape_text, signatures))


def micros(time_us: float) -> str:
    """A time with a unit that suits."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if time_us >= size:
            return f"{time_us / size:.4g} {unit}"
    return f"{time_us:.4g} µs"


def _shape_text(signature: Shapes) -> str:
    return " ".join("×".join(map(str, shape)) or "()" for shape in signature) or "no inputs"
