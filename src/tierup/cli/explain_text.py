"""What `tierup explain` prints: an explanation as tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tierup.cli.show import brief, duration
from tierup.cost.roofline import peak_gflops
from tierup.explain.explanation import Alone, Code, Explanation, Refused, Region
from tierup.explain.functions import FunctionRow
from tierup.explain.recipe import Axis, Recipe
from tierup.profile.machine import Machine

_OPS_SHOWN, _PAIRS_SHOWN = 44, 6  # characters of ops, pairs of regions that one reason has parted


def print_head(
    console: Console, path: Path, values: dict[str, Any], explanation: Explanation, where: str, machine: Machine
) -> None:
    """What was called, and what keeps figures from being what they seem."""
    tier = f"tier 2, {where}" if where else "tier 1"
    inputs = ", ".join(f"{name} {brief(value).split('  ')[0]}" for name, value in values.items())
    threads = counted(explanation.threads, "thread")
    console.print(
        f"[bold]{escape(str(path))}[/bold]  {tier}, {explanation.target}, {threads}, called with "
        f"{escape(inputs) or 'nothing'}",
        highlight=False,
    )
    if not explanation.holds:
        broken = "; ".join(explanation.broken)
        console.print(
            "At these sizes the plan's guard fails, and the baseline answers the whole call. Sizes that were taken to "
            f"be equal are not: {broken}. Regions are shown without figures. Calls like this one get a function of "
            "their own, in which less is assumed, when they come often; it is the one for inputs like these.",
            highlight=False,
            markup=False,
        )
    if not machine.measured.is_quiet:
        console.print(
            "The machine's peaks were measured while it was busy, so shares of the roofline are rough; run "
            "`tierup doctor --remeasure` when it is idle.",
            highlight=False,
        )


def print_all(console: Console, explanation: Explanation, machine: Machine) -> None:
    """All regions, what runs alone, what was refused, and the memory between kernels."""
    _print_time(console, explanation, machine)
    if explanation.regions:
        console.print(_region_table(explanation))
        if any((region.share_of_roofline or 0) > 1 for region in explanation.regions):
            console.print(
                "More than 100%: some of what was read lay in a nearer cache than the one that would hold it all.",
                highlight=False,
            )
    else:
        console.print("No part of the model compiles to kernels.")
    _print_alone(console, explanation)
    if explanation.refused:
        console.print(_refused_table(explanation.refused))
    _print_memory(console, explanation)


def print_functions(console: Console, rows: Sequence[FunctionRow]) -> None:
    """The functions in short; nothing where there is one, which was shown."""
    if len(rows) < 2:
        return
    table = _table("function", "for inputs", "regions", "kernels", "alone", "time in kernels", "call", "arena")
    for row in rows:
        shapes = [f"[{', '.join(map(str, shape))}]" for shape in row.signature or ()]
        table.add_row(
            f"tier {row.tier}",
            _inputs_of(row, shapes),
            *map(str, (row.regions, row.kernels, row.alone)),
            _time(row.kernels_us),
            _time(row.call_us),
            _bytes(row.arena_bytes) if row.arena_bytes is not None else "",
        )
    console.print(table)


def _inputs_of(row: FunctionRow, shapes: Sequence[str]) -> str:
    if row.signature is None:
        return "like these" if row.stray else "of any size"
    return escape(" ".join(shapes) + "".join(f", {fact}" for fact in row.facts))


def _print_time(console: Console, explanation: Explanation, machine: Machine) -> None:
    call = f"A call takes {_time(explanation.call_us)} (median of {explanation.calls})."
    if not explanation.holds:
        console.print(call, highlight=False)
        return
    parts = [(counted(len(explanation.regions), "region"), _sum_us(explanation.regions))] if explanation.regions else []
    if explanation.alone:
        alone = counted(len(explanation.alone), "node")
        parts.append((f"{alone} in the reference tier", _sum_us(explanation.alone)))
    parts.append(("inputs, sizes, jumps, copies and results", explanation.rest_us))
    shown = ", ".join(f"{what} {_time(us)}" for what, us in parts)
    console.print(
        f"{call} Its parts, timed inside such calls, add up to {_time(explanation.parts_us)}: {shown}.",
        highlight=False,
    )
    if explanation.regions:
        console.print(
            f"A roofline is what {counted(explanation.threads, 'thread')} could reach: "
            f"{peak_gflops(machine, explanation.threads):.0f} GFLOP/s, or the bandwidth of the memory that is named.",
            highlight=False,
        )


def _sum_us(items: Iterable[Region | Alone]) -> float:
    return sum(item.measured_us or 0.0 for item in items)


def _region_table(explanation: Explanation) -> Table:
    inside = any(region.body is not None for region in explanation.regions)
    columns = ("kind", "ops", "domain", "kernel", "flops", "bytes", "time", "of roofline", "of call")
    table = _table("region", *(("in", "runs") if inside else ()), *columns)
    for region in explanation.regions:
        shared = f" ×{region.shared_by}" if region.shared_by > 1 else ""
        table.add_row(
            str(region.number),
            *((escape(region.body or ""), str(region.runs)) if inside else ()),
            region.kind,
            escape(_short_ops(region.ops)),
            escape(_domain(region)),
            f"{region.kernel}{shared}",
            _count(region.work.flops) if region.work else "",
            _bytes(region.work.bytes) if region.work else "",
            _time(region.measured_us),
            f"{_percent(region.share_of_roofline)} {region.bound}" if region.share_of_roofline is not None else "",
            _percent(region.share_of_call),
        )
    return table


def _print_alone(console: Console, explanation: Explanation) -> None:
    """Nodes in the reference tier, those of one op with one reason together."""
    groups: dict[tuple[str, str], list[Alone]] = {}
    for node in explanation.alone:
        groups.setdefault((node.op, node.reason), []).append(node)
    if groups:
        table = _table("in the reference tier", "nodes", "time", "of call", "because")
        for (op, reason), nodes in sorted(groups.items(), key=lambda item: -_sum_us(item[1])):
            ran = any(node.measured_us is not None for node in nodes)
            time_us = _sum_us(nodes) if ran else None
            share = _percent(time_us / explanation.parts_us) if time_us is not None else ""
            table.add_row(escape(op), str(len(nodes)), _time(time_us), share, escape(reason))
        console.print(table)
    notes = []
    if explanation.views:
        notes.append(f"{counted(explanation.views, 'reshape')}: the same memory under other sizes.")
    if explanation.not_needed:
        count = counted(explanation.not_needed, "node")
        notes.append(f"{count} that run nowhere: only sizes need them, or kernels read through them.")
    if notes:
        console.print(" ".join(notes), highlight=False)


def _refused_table(refused: Sequence[Refused]) -> Table:
    """Fusions that were refused, those with one reason together."""
    groups: dict[str, list[Refused]] = {}
    for pair in refused:
        groups.setdefault(pair.reason, []).append(pair)
    table = _table("not fused", "regions", "because")
    for reason, pairs in sorted(groups.items(), key=lambda item: -len(item[1])):
        shown = ", ".join(f"{pair.producer}→{pair.consumer}" for pair in pairs[:_PAIRS_SHOWN])
        more = ", …" if len(pairs) > _PAIRS_SHOWN else ""
        details = list(dict.fromkeys(pair.detail for pair in pairs if pair.detail))
        example = f" ({details[0]}{', …' if len(details) > 1 else ''})" if details else ""
        table.add_row(str(len(pairs)), f"{shown}{more}", escape(f"{reason}{example}"))
    return table


def _print_memory(console: Console, explanation: Explanation) -> None:
    memory = explanation.memory
    if memory.values and memory.arena_bytes is not None:
        least = ""
        if memory.lower_bound_bytes is not None:
            least = f"; {_bytes(memory.lower_bound_bytes)} are alive together at the busiest step"
        console.print(
            f"The arena for {counted(memory.values, 'value')} between kernels has {_bytes(memory.arena_bytes)}{least}.",
            highlight=False,
        )


def print_region(console: Console, region: Region, explanation: Explanation, code: Code) -> None:
    """Everything about one region."""
    names = [f"{dim} is {name}" for dim, name in zip(_shown_dims(region), region.open, strict=True) if name]
    opened = f"; open: {', '.join(names)}" if names else ""
    inside = f" in body {region.body}, run {region.runs}×" if region.body is not None else ""
    console.print(
        f"Region {region.number}{escape(inside)}: {region.kind} over {escape(_domain(region))}{escape(opened)}",
        highlight=False,
    )
    table = _table("op", "reads", "writes", "node of the model")
    for operation in region.operations:
        reads, writes = ("\n".join(values) for values in (operation.inputs, operation.outputs))
        table.add_row(operation.op, escape(reads), escape(writes), escape(operation.node))
    console.print(table)
    facts = _table("", "")
    facts.show_header = False
    for name, text in (*_figures(region), *_choices(region)):
        facts.add_row(name, escape(text))
    console.print(facts)
    for pair in explanation.refused:
        if region.number in (pair.producer, pair.consumer):
            detail = f" ({pair.detail})" if pair.detail else ""
            line = f"Not fused, {pair.producer} → {pair.consumer}: {pair.reason}{detail}."
            console.print(line, highlight=False, markup=False)
    for title, source in (("Tile program", code.program), ("LLVM", code.llvm), ("Assembly", code.assembly)):
        if source is not None:
            console.print(f"\n[bold]{title}[/bold]")
            console.print(source.rstrip(), markup=False, highlight=False, soft_wrap=True)


def _figures(region: Region) -> list[tuple[str, str]]:
    """What the region computes and moves, and how long that takes."""
    work, found = region.work, []
    if work is not None:
        functions = ", ".join(f"{_count(count)} {name}" for name, count in work.functions.items())
        found.append(("operations", _count(work.flops) + (f", among them {functions}" if functions else "")))
        parts = ((work.read_bytes, "read"), (work.constant_bytes, "of constants"), (work.written_bytes, "written"))
        shown = ", ".join(f"{_bytes(amount)} {what}" for amount, what in parts)
        found.append(("bytes", f"{_bytes(work.bytes)}: {shown}"))
    if region.measured_us is not None:
        found.append(("time", f"{_time(region.measured_us)}, {_percent(region.share_of_call)} of the call"))
    if region.roofline_us is not None:
        share = f", {_percent(region.share_of_roofline)} of that reached" if region.share_of_roofline else ""
        found.append(("roofline", f"{_time(region.roofline_us)}, bound by {region.bound}{share}"))
    return found


def _choices(region: Region) -> list[tuple[str, str]]:
    """The recipe, line by line."""
    recipe = region.recipe
    found = [("kernel", f"number {region.kernel} of the plan, in {region.shared_by} of the regions")]
    found.append(("grid", ", ".join(map(_axis, recipe.grid))))
    if recipe.tiles:
        found.append(("register tiles", ", ".join(" × ".join(map(str, tile)) for tile in recipe.tiles)))
    elif recipe.loops:
        found.append(("loops", ", ".join(map(_axis, recipe.loops))))
    found.append(("vectors along", ", ".join(recipe.vector)))
    found += [
        ("panels", f"{panel.value} in panels of {panel.width} columns{panel.form and ', as ' + panel.form}")
        for panel in recipe.panels
    ]
    found += [("split", _split(recipe))] if recipe.steps is not None else []
    if recipe.scratch_bytes:
        found.append(("scratch", f"{_bytes(recipe.scratch_bytes)} a thread"))
    if recipe.may_replace:
        found.append(("in place", f"may be written over {', '.join(recipe.may_replace)}"))
    sizes = [
        f"s{index} = {'?' if size.number is None else size.number}" + (f" ({size.name})" if size.name else "")
        for index, size in enumerate(recipe.open_sizes)
    ]
    found.append(("open sizes", ", ".join(sizes) or "none: every size is closed"))
    return found


def _split(recipe: Recipe) -> str:
    steps = counted(recipe.steps or 0, "step")
    if recipe.pieces == 1:
        return f"{steps}, in one piece: a thread is worth {recipe.grain} or more"
    return f"{steps} in {recipe.pieces} pieces of {recipe.grain} or more, on {recipe.threads} threads"


def _axis(axis: Axis) -> str:
    return f"{axis.axis} < {'?' if axis.extent is None else axis.extent} by {axis.step}"


def _table(*columns: str) -> Table:
    table = Table(*columns, box=None, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"
    return table


def counted(count: int, noun: str) -> str:
    """A count with its noun, in the plural where that is due."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _short_ops(ops: Sequence[str]) -> str:
    """The ops of a region in one line, the last ones left out."""
    text = " ".join(ops)
    if len(text) <= _OPS_SHOWN:
        return text
    kept = list(ops)
    while len(" ".join(kept)) > _OPS_SHOWN - 5:
        kept.pop()
    return f"{' '.join(kept)} +{len(ops) - len(kept)}"


def _shown_dims(region: Region) -> list[str]:
    return [
        str(size) if size is not None else name or "?" for size, name in zip(region.domain, region.open, strict=True)
    ]


def _domain(region: Region) -> str:
    return f"[{', '.join(_shown_dims(region))}]"


def _time(time_us: float | None) -> str:
    if time_us is None:
        return ""
    return "< 0.1 µs" if time_us < 0.1 else duration(time_us * 1e-6)


def _percent(share: float | None) -> str:
    if share is None:
        return ""
    return f"{share:.1%}" if share < 0.0995 else f"{share:.0%}"


def _count(number: int) -> str:
    return _scaled(number, (("G", 10**9), ("M", 10**6), ("k", 10**3))) or str(number)


def _bytes(number: int) -> str:
    return _scaled(number, (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))) or f"{number} B"


def _scaled(number: int, units: Sequence[tuple[str, int]]) -> str | None:
    for unit, size in units:
        if number >= size:
            scaled = number / size
            return f"{scaled:.0f} {unit}" if scaled >= 99.95 else f"{scaled:.3g} {unit}"
    return None
