"""Kernels of a climb that may not serve: each costs its own region, and the plan is made again without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tierup.adapt.builders import Built
from tierup.adapt.messages import Failure
from tierup.adapt.proof import REASON_LIMIT_CHARS, Refusal
from tierup.events import Refused
from tierup.store.objects import program_digest

if TYPE_CHECKING:
    from tierup.runtime.progress import Progress
    from tierup.store.rows import Quarantine

_MOST_ROUNDS = 8  # the cut stays as it is: after the first, only what was proved is left


class Refusing:
    """What was refused so far, by digest of the tile program, and what live calls have refused. `lasts`: it would be
    refused again another time."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._rounds = 0
        self.reasons = dict(progress.left_out)
        self.lasts = True

    def more(self, texts: Sequence[str], refusals: Sequence[Refusal]) -> bool:
        """Note refusals of the kernels of these programs; whether there were any, so that the plan has to do without
        them. Each program counts once."""
        new: dict[str, Refusal] = {}
        for refusal in refusals:
            if refusal.slot < len(texts):
                new.setdefault(program_digest(texts[refusal.slot]), refusal)
        for digest, refusal in new.items():
            self.reasons[digest] = refusal.reason[:REASON_LIMIT_CHARS]
            self.lasts &= refusal.lasts
            self._progress.events.add(Refused("kernel", f"kernel {refusal.slot} of {len(texts)}: {refusal.reason}"))
        self._progress.counts.refusals += len(new)
        self._rounds += bool(new)
        return bool(new)

    @property
    def too_often(self) -> bool:
        """Whether there is no end to it."""
        return self._rounds >= _MOST_ROUNDS

    @property
    def nothing_left(self) -> str:
        """Why a plan has no kernels."""
        if not self.reasons:
            return "no part of the model compiles to kernels"
        return f"no kernel is left that may serve; the first was refused: {next(iter(self.reasons.values()))}"


def not_built(results: Sequence[Built | Failure]) -> list[Refusal]:
    """The kernels that there are none of."""
    return [
        Refusal(slot, f"it could not be built: {result.reason}", lasts=False)
        for slot, result in enumerate(results)
        if isinstance(result, Failure)
    ]


def in_quarantine(kernels: Sequence[Built], quarantined: Sequence[Quarantine]) -> list[Refusal]:
    """The kernels that gave wrong answers before."""
    reasons = {row.key: row.reason for row in quarantined}
    return [
        Refusal(slot, f"it is in quarantine: {reasons[kernel.key]}")
        for slot, kernel in enumerate(kernels)
        if kernel.key in reasons
    ]
