"""Climbs and swaps -> rows for the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import quantiles
from typing import TYPE_CHECKING

import msgspec

from tierup.digests import sha256
from tierup.events import Compared, shapes_text
from tierup.profile.identity import identify
from tierup.store.objects import object_key
from tierup.store.rows import Decision, Machine, Measurement, Profile, Recipe, Region, RegionProfile, Row

if TYPE_CHECKING:
    from tierup.adapt.live import Timed
    from tierup.codegen.target import Target
    from tierup.ir.facts import Aim
    from tierup.profile.execution import Profiles
    from tierup.store.records import KernelError

_TEXT = 2000  # what rows keep of a text
_KEY = 200  # and of a key
_DECISION_S = 86_400.0
_UNCLEAR_S = 1800.0  # where noise hid what it would save: machines become quiet again


def decision_key(parts: Mapping[str, str], aim: Aim) -> str:
    """Names a plan by what it is made of: the model's content, our own sources, the machine, and what it aims at."""
    named = (sorted(parts.items()), sorted(aim.signatures), sorted(aim.facts), sorted(aim.strays))
    return sha256(msgspec.json.encode(named)).hexdigest()


def left_alone_s(outcome: str, failures: int = 1) -> float:
    """For how long a plan of which this became is not made again."""
    return {"swapped": 0.0, "unclear": _UNCLEAR_S}.get(outcome, _DECISION_S) * max(1, failures)


def machine_row() -> Machine:
    """This machine."""
    identity = identify()
    return Machine(identity.key, identity.name, identity.architecture, identity.cpus_online)


def kernel_rows(texts: Sequence[str], target: Target, errors: Mapping[int, KernelError], machine: str) -> list[Row]:
    """Regions, recipes, and the measurements of their proofs."""
    rows: list[Row] = []
    for slot, text in enumerate(texts):
        key = object_key(text, target)
        rows.append(Region(key.program, text.split("\n", 1)[0][:_TEXT], len(text)))
        rows.append(Recipe(key.digest, key.program, key.recipe, key.target, key.emitter, key.llvm))
        error = errors.get(slot)
        if error is not None:
            name = f"proof {key.digest}"
            numbers = min(error.worst, 1e30), min(error.rms, 1e30), min(error.rms_baseline, 1e30)
            rows.append(Measurement(name, machine, "proof", key.digest, "", *numbers))
    return rows


def trial_rows(plan: str, compared: Sequence[Compared], machine: str) -> list[Row]:
    """A measurement for each signature."""
    rows: list[Row] = []
    for one in compared:
        signature = (shapes_text((one.signature,)) + " on one thread" * one.alone)[:_TEXT]
        rows.append(
            Measurement(
                sha256(f"{plan} {machine} {signature}".encode()).hexdigest(),
                machine,
                "trial",
                plan,
                signature,
                incumbent_us=one.incumbent_us,
                candidate_us=one.candidate_us,
                gain=one.gain,
                margin=one.margin,
                pairs=one.pairs,
            )
        )
    return rows


def decision_row(
    plan: str, machine: str, model: str, tier: int, outcome: str, reason: str, failures: int = 0
) -> Decision:
    """What became of a plan."""
    return Decision(plan, machine, model[:_TEXT], tier, outcome, reason[:_TEXT], failures)  # type: ignore[arg-type]


def profile_rows(plan: str, machine: str, model: str, tier: int, program: int, times: Sequence[Timed]) -> list[Row]:
    """How long the last calls took, by signature."""
    taken: dict[str, list[float]] = {}
    for signature, number, nanoseconds in times:
        if number == program:
            shapes = tuple(shape for shape in signature if shape is not None)
            taken.setdefault(shapes_text((shapes,))[:_TEXT], []).append(1e-3 * nanoseconds)
    rows: list[Row] = []
    for text, found in taken.items():
        cuts = quantiles(found, n=100, method="inclusive") if len(found) > 1 else found * 99
        key = sha256(f"{plan} {machine} {text} {tier}".encode()).hexdigest()
        rows.append(Profile(key, machine, model[:_TEXT], text, tier, len(found), cuts[49], cuts[89], cuts[98]))
    return rows


def region_profile_rows(profiles: Profiles, machine: str, most: int, counters: Sequence[str] = ()) -> list[Row]:
    """What is new in the histories of regions, those with the most new runs first; it counts as saved then."""
    new = [
        (history.new_runs, region, signature, history)
        for region, histories in profiles.regions.items()
        for signature, history in histories.items()
        if history.new_runs and len(region) <= _KEY
    ]
    rows: list[Row] = []
    for _, region, signature, history in sorted(new, key=lambda entry: -entry[0])[:most]:
        shapes = tuple(shape for shape in signature if shape is not None)
        text = shapes_text((shapes,))[:_TEXT]
        key = sha256(f"{region} {machine} {text}".encode()).hexdigest()
        times_us = tuple(min(time_us, 1e12) for time_us in history.times_us.last(history.new_times))
        counts = tuple(min(max(count, 0.0), 1e30) for count in history.new_counts)
        names = tuple(counters[: len(counts)])
        rows.append(
            RegionProfile(key, machine, region, text, history.new_runs, times_us, names, counts, history.new_counted)
        )
        history.saved()
    return rows
