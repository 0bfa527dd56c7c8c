"""Peers at their best settings: what can be set is tried before anything is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from tierup.bench.bench import Bench
from tierup.bench.contenders import Contender, Settings
from tierup.bench.process import Lost
from tierup.bench.record import Trial

TRIALS_S = 20.0  # about as long as an encoder is compiled


def try_settings(
    bench: Bench, contender: Contender, attempt: Callable[[Bench, Contender, Settings], float]
) -> list[Trial]:
    """What `attempt` (microseconds, or Lost) makes of each setting. Raises Lost where none of them can be run.

    Attempts run in processes of their own, so that they add nothing to the memory of the one that is measured. Those
    that compile take long: when the time for trials is over, what is left is not tried, and says so.
    """
    trials: list[Trial] = []
    end = time.monotonic() + TRIALS_S
    for settings in contender.settings(bench.threads):
        if time.monotonic() > end and any(trial.call_us is not None for trial in trials):
            trials.append(Trial(settings, why_not=f"not tried: those before it took {TRIALS_S:.0f} s"))
            continue
        bench.options.say(f"trying {contender.name} with {settings_text(settings)}")
        try:
            trials.append(Trial(settings, attempt(bench, contender, settings)))
        except Lost as lost:
            trials.append(Trial(settings, why_not=str(lost)))
    if all(trial.call_us is None for trial in trials):
        raise Lost(trials[0].why_not or "it cannot be run")
    return trials


def best(trials: Sequence[Trial]) -> Settings:
    """The settings that took the least time."""
    return min(trials, key=lambda trial: np.inf if trial.call_us is None else trial.call_us).settings


def settings_text(settings: Settings) -> str:
    return ", ".join(name if value is True else f"{name} {value}" for name, value in settings.items())
