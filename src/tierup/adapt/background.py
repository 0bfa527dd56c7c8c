"""The thread that models are tiered up on, one after another. It is there while there is something to do.

It is a daemon: the interpreter never waits for it. What it imports, it imports itself, so that loading a model does
not.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tierup import _native
    from tierup.adapt.messages import CallRecord
    from tierup.config import Config
    from tierup.runtime.constants import Constants
    from tierup.runtime.origin import Origin
    from tierup.runtime.progress import Progress, Serving, Signature

NO_TARGET = "kernels need a processor with AVX2 and FMA, or NEON; this one has neither"
_FIRST_CALL_S = 0.5  # what a model is given to answer its first call in
_FORKED = "the process was forked while kernels were being built; load the model again in the child"


class Climb:
    """One model's way to the next tier: 1, or 2 if there are signatures to close.

    `go_live` is the model's method; it and the origin are held weakly, so that a model that is dropped is gone. So is
    `calls`, which gives calls to try plans on. `constants` are what the next program may share with the one that runs,
    `incumbent` what that is: the signatures of its functions, None if it is the baseline.
    `again`: it is tried though it was turned away before.
    """

    def __init__(
        self,
        name: str,
        go_live: Callable[[_native.Program, Serving, bool], bool],
        origin: Origin,
        progress: Progress,
        config: Config,
        signatures: tuple[Signature, ...] = (),
        constants: Constants | None = None,
        incumbent: tuple[Signature, ...] | None = None,
        calls: Callable[[tuple[Signature, ...]], tuple[CallRecord, ...]] | None = None,
        again: bool = False,
    ) -> None:
        self.name, self.progress, self.config = name, progress, config
        self.signatures, self.constants, self.incumbent = signatures, constants or {}, incumbent
        self._go_live, self._origin = weakref.WeakMethod(go_live), weakref.ref(origin)
        self.again = again
        self._calls = None if calls is None else weakref.WeakMethod(calls)

    def origin(self) -> Origin:
        """Where the model comes from; Stopped if nobody needs to know any more."""
        origin = self._origin()
        if origin is None or self.progress.stopped:
            raise Stopped
        return origin

    def calls(self) -> tuple[CallRecord, ...]:
        """Calls to try plans on; none if the model has none to give."""
        calls = self._calls() if self._calls is not None else None
        return () if calls is None else calls(self.signatures)

    def go_live(self, program: _native.Program, serving: Serving, tried: bool = False) -> None:
        """Let the model answer with this program; Stopped if it must not change. `tried`: it was measured faster."""
        go_live = self._go_live()
        if go_live is None or not go_live(program, serving, tried):
            raise Stopped


class Stopped(Exception):
    """The model is gone, closed or frozen: nobody wants the result any more."""


class Background:
    """A queue and its thread."""

    def __init__(self, run: Callable[[Climb], None]) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._waiting: deque[Climb] = deque()
        self._current: Climb | None = None
        self._running = False
        os.register_at_fork(after_in_child=self._forget)

    def submit(self, climb: Climb) -> int:
        """See to it that it is run. Returns at once: how many are before it."""
        with self._lock:
            self._waiting.append(climb)
            waiting = len(self._waiting) - (not self._running)
            if self._running:
                return waiting
            self._running = True
        threading.Thread(target=self._work, name="tierup-background", daemon=True).start()
        return waiting

    def _work(self) -> None:
        while True:
            with self._lock:
                self._current = self._waiting.popleft() if self._waiting else None
                if self._current is None:
                    self._running = False
                    return
            self._run(self._current)

    def _forget(self) -> None:
        """A forked child does not have the thread, and the lock may have been held."""
        unfinished = [*self._waiting, *([self._current] if self._current is not None else [])]
        self._lock, self._waiting, self._current, self._running = threading.Lock(), deque(), None, False
        for climb in unfinished:
            climb.progress.abandon(_FORKED)


def _tier_up(climb: Climb) -> None:
    # Imports take turns with whatever Python runs meanwhile, and that is the first call.
    climb.progress.may_begin.wait(_FIRST_CALL_S)
    from tierup.adapt.tiering import tier_up_quietly

    tier_up_quietly(climb)


BACKGROUND = Background(_tier_up)  # one for the process
