"""`tierup cache`: what is kept of models on this machine, whether it is sound, and why something was not found."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from msgspec import Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tierup.adapt.memory import place_of
from tierup.cli.show import write_json
from tierup.config import Config
from tierup.errors import StoreError, TierupError
from tierup.events import micros, shapes_text
from tierup.ir.facts import facts_text
from tierup.store.learned import Store
from tierup.store.objects import ObjectCache
from tierup.store.plans import Plans, cache_parts
from tierup.store.rows import Decision, Machine, Quarantine, Region, RegionProfile
from tierup.store.source import open_source

_SHOWN = 20


class Caches(Struct, frozen=True):
    """The three: kernels, plans, and what was learned (None where that cannot be opened, with the reason)."""

    objects: ObjectCache
    plans: Plans
    store: Store | None
    trouble: str


def open_caches(config: Config) -> Caches:
    """Those of this user."""
    objects, plans = ObjectCache(config.cache_dir / "objects"), Plans(config.cache_path, config.threads)
    try:
        return Caches(objects, plans, Store(place_of(config)), "")
    except StoreError as error:
        return Caches(objects, plans, None, str(error))


def list_caches(config: Config, json_file: Path | None, console: Console) -> None:
    """What is there: counts, bytes, the plans, what was decided, what is in quarantine."""
    caches = open_caches(config)
    kernels = caches.objects.entries()
    plans = caches.plans.entries()
    counts = {} if caches.store is None else caches.store.count()
    decisions = [] if caches.store is None else caches.store.all(Decision)
    quarantined = [] if caches.store is None else caches.store.all(Quarantine)
    console.print(f"kernels: {len(kernels)}, {_mib(sum(entry.size_bytes for entry in kernels))}", highlight=False)
    console.print(f"plans: {len(plans)}, {_mib(sum(plan.size_bytes for plan in plans))}", highlight=False)
    table = Table("model", "tier", "kernels", "signatures", "size", "used", box=None, pad_edge=False)
    for plan in plans[:_SHOWN]:
        shapes = "; ".join(" ".join("×".join(map(str, shape)) for shape in one) for one in plan.signatures)
        shapes += f" where {facts_text(plan.facts)}" if plan.facts else ""
        shapes += f"{'; ' if shapes else ''}calls like {shapes_text(plan.strays)}" if plan.strays else ""
        tier = 2 if plan.signatures else 1
        size, used = _mib(plan.size_bytes), _ago(plan.used_s)
        table.add_row(plan.model or "?", str(tier), str(plan.kernels), shapes, size, used)
    if plans:
        console.print(table)
    listed = ", ".join(f"{count} {name}s" for name, count in counts.items() if count) or "nothing"
    console.print(f"learned: {caches.trouble or listed}", markup=False, highlight=False)
    machines = [] if caches.store is None else caches.store.all(Machine)
    for machine in machines[:_SHOWN]:
        line = f"  machine {machine.row.processor}, {machine.row.architecture}, {machine.row.cores} cores"
        console.print(f"{line}: used {_ago(machine.used_s)}", markup=False, highlight=False)
    if caches.store is not None:
        _show_profiles(caches.store, None, console)
    for kept in decisions[:_SHOWN]:
        row = kept.row
        reason = f": {row.reason}" if row.reason else ""
        line = f"  {row.model}, tier {row.tier}: {row.outcome} {_ago(kept.made_s)}{reason}"
        console.print(line, markup=False, highlight=False)
    for fault in quarantined[:_SHOWN]:
        console.print(f"  quarantine {fault.row.key[:12]}: {fault.row.reason}", markup=False, highlight=False)
    record: dict[str, Any] = {
        "kernels": len(kernels),
        "kernels_bytes": sum(entry.size_bytes for entry in kernels),
        "plans": [
            {
                "model": plan.model,
                "kernels": plan.kernels,
                "signatures": plan.signatures,
                "facts": list(map(str, plan.facts)),
                "strays": plan.strays,
                "bytes": plan.size_bytes,
            }
            for plan in plans
        ],
        "learned": counts,
        "trouble": caches.trouble,
    }
    write_json(json_file, record)


def explain_cache(model: Path, config: Config, json_file: Path | None, console: Console) -> None:
    """Whether a model starts from the cache, and which part of the key differs if it does not."""
    source = open_source(model)
    if source is None:
        raise TierupError(f"'{model}' is no model file")
    plans = Plans(config.cache_path, config.threads)
    wanted = plans.full_parts(source, cache_parts(config.precision))
    entries = plans.entries()
    if not entries:
        console.print("the plan cache is empty", highlight=False)
        write_json(json_file, {"stored": False, "differs": {name: [text, None] for name, text in wanted.items()}})
        return
    nearest = max(entries, key=lambda entry: (_shared(wanted, entry.parts), entry.used_s))
    differs = {
        name: [text, nearest.parts.get(name)] for name, text in wanted.items() if nearest.parts.get(name) != text
    }
    write_json(json_file, {"stored": not differs, "differs": differs})
    if not differs:
        console.print(f"it is stored: {nearest.kernels} kernels, used {_ago(nearest.used_s)}", highlight=False)
        entry, store = plans.find(source, cache_parts(config.precision)), open_caches(config).store
        if entry is not None and not entry.record.plan.proved:
            console.print("its kernels were not proved: only a forced tier starts with them", highlight=False)
        if entry is not None and store is not None:
            _show_profiles(store, {kernel.region for kernel in entry.record.plan.kernels}, console)
        return
    console.print(f"no plan for it; the nearest one is of model '{nearest.model}' and differs:", highlight=False)
    for name, (text, found) in differs.items():
        console.print(f"  {name} is {text}, there {found or 'nothing'}", markup=False, highlight=False)


def _show_profiles(store: Store, regions: set[str] | None, console: Console) -> None:
    """How long regions took in calls that were watched, those that took the most time first; all, or these."""
    found = [kept for kept in store.all(RegionProfile) if regions is None or kept.row.region in regions]
    if not found:
        return
    heads = {kept.row.key: kept.row.head for kept in store.all(Region)}
    table = Table("region", "computes", "signature", "runs", "p50", "p99", "seen", box=None, pad_edge=False)
    for kept in sorted(found, key=lambda kept: -kept.row.runs * kept.row.quantile(0.5))[:_SHOWN]:
        row = kept.row
        times = micros(row.quantile(0.5)), micros(row.quantile(0.99))
        head = Text(heads.get(row.region, "?")[:60])
        table.add_row(row.region[:12], head, row.signature, str(row.runs), *times, _ago(kept.used_s))
    console.print(f"  {len(found)} execution profiles of regions", highlight=False)
    console.print(table)


def verify_caches(config: Config, json_file: Path | None, console: Console) -> bool:
    """Read everything; what is damaged is removed. Whether all was whole, and could be read."""
    caches = open_caches(config)
    kernels, plans = caches.objects.verify(), caches.plans.verify()
    rows = 0 if caches.store is None else caches.store.verify()
    aside = 0 if caches.store is None else caches.store.counters.aside
    console.print(
        f"damaged and removed: {kernels} kernels, {plans} plans, {rows} rows; stores set aside: {aside}",
        highlight=False,
    )
    if caches.trouble:
        console.print(caches.trouble, markup=False, highlight=False)
    counts = {"kernels": kernels, "plans": plans, "rows": rows, "stores_set_aside": aside}
    write_json(json_file, {**counts, "trouble": caches.trouble})
    return not any(counts.values()) and not caches.trouble


def clear_caches(config: Config, console: Console) -> bool:
    """Remove everything that can be made or learned again. Whether all could be."""
    caches = open_caches(config)
    kernels, plans = caches.objects.clear(), caches.plans.clear()
    rows = 0 if caches.store is None else caches.store.clear()
    console.print(f"removed {kernels} kernels, {plans} plans, {rows} rows", highlight=False)
    if caches.trouble:
        console.print(caches.trouble, markup=False, highlight=False)
    return not caches.trouble


def _shared(wanted: dict[str, str], parts: dict[str, str]) -> tuple[bool, int]:
    """How much of a key an entry has; the model's content counts most."""
    return parts.get("model") == wanted["model"], sum(parts.get(name) == text for name, text in wanted.items())


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


def _ago(at_s: float) -> str:
    seconds = max(0.0, time.time() - at_s)
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
