"""Tile programs -> machine code: out of the cache, or built by worker processes and put there.

A builder takes texts, since that is what keys are made of and what workers are sent: a kernel that is cached is found
without reading its program. What a caller waits for, and is small, is built in its own process, which takes less time
than starting another; so is everything where no process can be started.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from tierup.adapt.messages import Compile, Compiled, Failure, Job, Reply
from tierup.adapt.workers import JOB_LIMIT_S, AtMost, Presses, Told, Workers, WorkersUnavailable
from tierup.codegen.target import Target
from tierup.errors import TierupError
from tierup.store.objects import ObjectCache, ObjectKey, object_key

if TYPE_CHECKING:  # whoever has texts need not import what programs consist of
    from tierup.lower.tile import TileProgram

# A worker takes 0.4 s to its first kernel, and a KiB of text about 17 ms to compile: up to here, two workers that have
# to be started first are no faster than this process alone.
IN_PROCESS_CHARS = 32 << 10
_BATCH = 8  # as many as `codegen.objects` puts into one object

_log = logging.getLogger(__name__)

_WORKERS = Workers()  # one set in a process, however many models there are


class BuildError(TierupError):
    """A kernel could not be built."""


class Built(msgspec.Struct, frozen=True):
    """A kernel's machine code, the digest of its key in the object cache, and whether it came from there."""

    code: bytes
    key: str
    cached: bool


class Counters(msgspec.Struct):
    """Builds are compilations started; what was loaded from the cache is none."""

    builds: int = 0
    failures: int = 0


class Builders:
    """Builds kernels for one configuration: in at least `threads` batches, by as many workers, or as `at_most` allows.
    `told` hears what each batch took, `presses` says whether it is worth a core that calls could use. Threads may share
    it."""

    def __init__(
        self,
        cache: ObjectCache | None,
        threads: int,
        workers: Workers = _WORKERS,
        limit_s: float = JOB_LIMIT_S,
        at_most: AtMost | None = None,
        told: Told | None = None,
        presses: Presses = False,
    ) -> None:
        self._at_most: AtMost = threads if at_most is None else at_most
        self._told, self._presses = told, presses
        self.cache, self.counters = cache, Counters()
        self._counting = threading.Lock()
        self._threads, self._limit_s = threads, limit_s
        self._workers = workers

    def compile(
        self, programs: Sequence[TileProgram], target: Target, *, urgent: bool = False
    ) -> list[Built | Failure]:
        """A kernel for each program, or why there is none. `urgent`: somebody waits for them."""
        from tierup.lower.text import print_program

        return self.compile_texts([print_program(program) for program in programs], target, urgent=urgent)

    def compile_texts(self, texts: Sequence[str], target: Target, *, urgent: bool = False) -> list[Built | Failure]:
        """The same for programs as text."""
        keys = {text: object_key(text, target) for text in texts}
        found: dict[str, Built | Failure] = {}
        for text, key in keys.items():
            code = self.cache.get(key) if self.cache is not None else None
            if code is not None:
                found[text] = Built(code, key.digest, cached=True)
        missing = [text for text in keys if text not in found]
        with self._counting:
            self.counters.builds += len(missing)
        for text, result in zip(missing, self._build(missing, target, urgent), strict=True):
            found[text] = self._keep(keys[text], result)
        return [found[text] for text in texts]

    def build(self, programs: Sequence[TileProgram], target: Target) -> list[bytes]:
        """Machine code for each program, for a caller that waits and cannot do without; BuildError says why not."""
        return codes(self.compile(programs, target, urgent=True))

    def _keep(self, key: ObjectKey, result: bytes | Failure) -> Built | Failure:
        if isinstance(result, Failure):
            with self._counting:
                self.counters.failures += 1
            _log.warning("a kernel could not be built: %s", result.reason)
            return result
        if self.cache is not None:
            self.cache.put(key, result)
        return Built(result, key.digest, cached=False)

    def _build(self, texts: Sequence[str], target: Target, urgent: bool) -> Sequence[bytes | Failure]:
        if not texts:
            return []
        if not urgent or not self._better_here(texts):
            try:
                return self._build_apart(texts, target, urgent or self._presses)
            except WorkersUnavailable as error:
                _log.warning("kernels are built in this process: %s", error)
        from tierup.adapt.compiling import compile_texts

        return compile_texts(texts, target)

    def _better_here(self, texts: Sequence[str]) -> bool:
        small = sum(map(len, texts)) <= IN_PROCESS_CHARS and not self._workers.running
        return small or self._threads == 1

    def _build_apart(self, texts: Sequence[str], target: Target, presses: Presses) -> list[bytes | Failure]:
        """In workers. What fails with others is tried alone, so that one program costs only itself."""
        results: dict[str, bytes | Failure] = {}
        batches = split(texts, self._threads)
        while batches:
            jobs = [Compile(tuple(batch), target) for batch in batches]
            failed: list[list[str]] = []
            replies = self._workers.run(
                jobs, at_most=self._at_most, limit_s=self._limit_s, told=self._told, presses=presses
            )
            for batch, reply in zip(batches, replies, strict=True):
                if isinstance(reply, Compiled):
                    results.update(zip(batch, reply.codes, strict=True))
                elif len(batch) == 1 and isinstance(reply, Failure):
                    results[batch[0]] = reply
                else:
                    failed += [[text] for text in batch]
            batches = failed
        return [results[text] for text in texts]


def run_jobs(
    jobs: Sequence[Job],
    *,
    at_most: AtMost = 1,
    limit_s: float = JOB_LIMIT_S,
    told: Told | None = None,
    presses: Presses = False,
) -> list[Reply]:
    """Have any jobs done by workers, at most so many at once and in so many seconds each; `told` hears what each took.
    They step back for calls unless the jobs press. WorkersUnavailable if there are none."""
    return _WORKERS.run(jobs, at_most=at_most, limit_s=limit_s, told=told, presses=presses)


def prepare(job: Job) -> None:
    """Have a job begun that `run_jobs` will soon be asked for, if workers have nothing else to do."""
    _WORKERS.prepare(job)


def codes(results: Sequence[Built | Failure]) -> list[bytes]:
    """The machine code of all of them; BuildError if one was not built."""
    for number, result in enumerate(results):
        if isinstance(result, Failure):
            raise BuildError(f"kernel {number} of {len(results)} could not be built: {result.reason}")
    return [result.code for result in results if isinstance(result, Built)]


def split(texts: Sequence[str], workers: int) -> list[list[str]]:
    """Few batches that take about as long each, the longest first: at least one for each worker, if there are so
    many programs. The longer the text, the longer it takes."""
    count = max(min(workers, len(texts)), -(-len(texts) // _BATCH))
    batches: list[list[str]] = [[] for _ in range(count)]
    loads = [0] * count
    for text in sorted(texts, key=len, reverse=True):
        least = loads.index(min(loads))
        batches[least].append(text)
        loads[least] += len(text)
    order = sorted(range(count), key=lambda number: -loads[number])
    return [batches[number] for number in order]
