"""A program that gave a wrong answer -> what answers instead, and which of its kernels do not serve again."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tierup import _native
from tierup.adapt.learn import decision_key, decision_row, machine_row
from tierup.adapt.memory import MEMORY
from tierup.codegen.target import target_of
from tierup.profile.identity import identify
from tierup.runtime.executable import Baseline
from tierup.runtime.progress import Serving
from tierup.store.objects import ObjectCache
from tierup.store.rows import Quarantine

if TYPE_CHECKING:
    from tierup.adapt.care import Previous
    from tierup.config import Config
    from tierup.events import Events
    from tierup.runtime.feeds import Input, Output
    from tierup.runtime.origin import Origin

_CALLOUT = 3  # the step that calls out
_REASON_CHARS = 2000


def safe_program(
    origin: Origin, previous: Previous | None, inputs: Sequence[Input], outputs: Sequence[Output]
) -> tuple[_native.Program, Serving]:
    """The baseline, at once: what answered before, or a program whose only step is to ask the imported graph."""
    if previous is not None and previous.serving.tier == 0:
        return previous.program, previous.serving
    ins, outs = list(range(len(inputs))), list(range(len(inputs), len(inputs) + len(outputs)))
    step = (_CALLOUT, 0, len(ins), *ins, len(outs), *outs)
    baseline = Baseline(origin.imported)
    function: tuple[object, ...] = (len(ins) + len(outs), 0, ins, outs, [], [step])
    program = _native.Program(functions=[function], callouts=[baseline], constants=[])
    return program, Serving(0, 0, 1, baseline=baseline)


def quarantine(
    config: Config, events: Events, model: str, program: _native.Program, serving: Serving, reason: str
) -> tuple[str, ...]:
    """Put the kernels that may have done it into quarantine: those whose code in memory is no longer what was built,
    or else all of the plan's. Returns their keys."""
    keys = changed_kernels(config, program, serving) or tuple(dict.fromkeys(serving.keys))
    _remember(config, events, model, serving, keys, reason)
    return keys


def give_up(config: Config, events: Events, model: str, serving: Serving, reason: str) -> None:
    """Have it known that the plan does not serve again, whatever its kernels are."""
    _remember(config, events, model, serving, (), reason)


def _remember(config: Config, events: Events, model: str, serving: Serving, keys: Sequence[str], reason: str) -> None:
    machine = machine_row()
    rows = [Quarantine(key, machine.key, reason[:_REASON_CHARS]) for key in keys]
    decisions = []
    if serving.parts:
        key = decision_key(serving.parts, serving.aim)
        decisions.append(decision_row(key, machine.key, model, serving.tier, "quarantined", reason))
    MEMORY.remember(config, [machine, *rows, *decisions], events)


def _addresses(program: _native.Program, serving: Serving) -> list[int]:
    """Where each kernel lies, by number; 0 for variants that found no room."""
    live = {(slot, key): address for slot, key, address, _ in program.variants()}
    found = {variant.kernel: live.get((variant.slot, variant.key), 0) for variant in serving.variants}
    found.update(enumerate(program.kernel_addresses()))
    return [found.get(number, 0) for number in range(len(serving.keys))]


def changed_kernels(config: Config, program: _native.Program, serving: Serving) -> tuple[str, ...]:
    """The kernels whose code in memory differs from what the object cache has for them."""
    target = target_of(identify())
    if target is None:
        return ()
    cache = ObjectCache(config.cache_dir / "objects")
    changed = []
    for key, address in zip(serving.keys, _addresses(program, serving), strict=False):
        code = cache.get_digest(key, target)
        if code is not None and address and ctypes.string_at(address, len(code)) != code:
            changed.append(key)
    return tuple(dict.fromkeys(changed))
