"""The live view of `tierup run`: tier, queue, swaps and latency while calls are made.

On a terminal the view stays at the bottom and events scroll above it; elsewhere events are printed as they come, and
nothing else. The view is drawn four times a second, between calls, so that it takes no part in what is timed.
"""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import Self

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tierup.cli.show import duration
from tierup.events import Queued, RolledBack, Swapped
from tierup.session import Model

_WINDOW = 512  # calls that the shown quantiles are of
_EVERY_S = 0.25


class LiveView:
    """Shows what happens to a model. A context manager."""

    def __init__(self, console: Console, model: Model, calls: int) -> None:
        self._console, self._model, self._calls = console, model, calls
        self._times_s: deque[float] = deque(maxlen=_WINDOW)
        self._began_s = time.time()
        self._events = 0
        self._done = 0
        self._last: dict[str, str] = {"queue": "", "swap": ""}
        self._drawn_s = 0.0
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.show_events()
        if self._live is not None:
            self._live.stop()

    def called(self, seconds: float) -> None:
        """A call was answered."""
        self._times_s.append(seconds)
        self._done += 1
        now_s = time.monotonic()
        if now_s - self._drawn_s >= _EVERY_S:
            self._drawn_s = now_s
            self.show_events()
            if self._live is not None:
                self._live.update(self.table(), refresh=True)

    def show_events(self) -> None:
        """Print what happened since the last time."""
        new, self._events = self._model.events.since(self._events)
        for entry in new:
            if isinstance(entry.event, Queued):
                self._last["queue"] = f"tier {entry.event.tier}"
            if isinstance(entry.event, Swapped | RolledBack):
                self._last["swap"] = f"call {entry.calls}"
            at_s = max(0.0, entry.at_s - self._began_s)
            self._console.print(f"{at_s:7.2f} s  call {entry.calls:<6}  {entry.event}", markup=False, highlight=False)

    def table(self) -> Table:
        """The view itself."""
        report = self._model.report()
        median, p99 = np.quantile(self._times_s, [0.5, 0.99]).tolist() if self._times_s else (0.0, 0.0)
        table = Table("tier", "queue", "swaps", "rolled back", "refused", "median", "p99", "calls", box=None)
        table.add_row(
            str(report.tier),
            "settled" if report.settled else f"{self._last['queue']} on its way",
            f"{report.counts.swaps} {self._last['swap']}",
            str(report.counts.rollbacks),
            str(report.counts.refusals),
            duration(median),
            duration(p99),
            f"{self._done} of {self._calls}",
        )
        return table
