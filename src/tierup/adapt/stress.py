"""The stress switches: variants that change under calls, and guards that fail at random. For tests.

A stressed model is not watched: it is swapped whether that pays or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tierup.plan.baseline import baseline
from tierup.runtime.executable import executable
from tierup.runtime.progress import Serving

if TYPE_CHECKING:
    from tierup import _native
    from tierup.config import Config
    from tierup.frontends.onnx import Imported

_KEPT = 3  # variants beside the baseline: those that answered last


class Stress:
    """The variants of one model."""

    def __init__(self, runner: _native.Runner, imported: Imported, config: Config) -> None:
        plan = baseline(imported.graph)
        self._baseline = executable(plan, imported.weights), Serving.of(plan)
        self._variants: list[tuple[_native.Program, Serving]] = []
        if config.stress_deopt:
            runner.set_rival(self._baseline[0], config.stress_deopt, config.stress_seed)
        if config.stress_swap_every:
            runner.notice_after(config.stress_swap_every)

    def another(self, program: _native.Program, serving: Serving) -> tuple[_native.Program, Serving]:
        """What answers after this one: the same without its variants, the baseline, and the others in turn."""
        if program.variants():
            program.exchange_variants()
            return program, serving
        if program is not self._baseline[0]:
            program.exchange_variants()  # for the next time
            self._variants = [kept for kept in self._variants if kept[0] is not program][-_KEPT + 1 :]
            self._variants.append((program, serving))
            return self._baseline
        self._variants = self._variants[1:] + self._variants[:1]  # the one that did not answer for longest
        return self._variants[-1] if self._variants else self._baseline
