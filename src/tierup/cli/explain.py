"""`tierup explain`: what a model's plan fuses and refuses, and why; what each region costs, and its code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tierup import _native
from tierup.adapt.planning import Planned, make_plan
from tierup.cli.inputs import OPEN_SIZES, gather_inputs
from tierup.cli.show import brief, duration, write_json
from tierup.config import Config
from tierup.cost.roofline import peak_gflops
from tierup.errors import InputError, StoreError
from tierup.explain.explanation import Alone, Code, Explanation, Refused, Region, code_of, explain
from tierup.explain.functions import FunctionRow, function_row, plan_closed
from tierup.explain.probe import Probes, Run, Sounding
from tierup.explain.recipe import Axis, Recipe
from tierup.profile.machine import Machine, load_or_measure, measure
from tierup.runtime.progress import Signature
from tierup.session import Model, load

_OPS_SHOWN, _PAIRS_SHOWN = 44, 6  # characters of ops, pairs of regions that one reason has parted


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    files: Sequence[str]
    shapes: Sequence[str]
    region: int | None
    llvm: bool
    asm: bool
    closed: bool = False
    html: Path | None = None


@dataclass(frozen=True)
class _View:
    """One function of the model, explained; `signature` is what it is closed to."""

    planned: Planned
    signature: Signature | None
    explanation: Explanation


def explain_model(path: Path, request: Request, json_file: Path | None) -> None:
    """Plan the model, probe calls of it, and print all regions or everything about one."""
    if (request.llvm or request.asm) and request.region is None:
        raise InputError("--llvm and --asm show the code of one region; say which: --region R")
    console, config = Console(), Config(force_tier=0)  # the plan is made here, and nothing may change meanwhile
    assert config.data_dir is not None  # Config fills both in
    assert config.threads is not None
    model = load(path, config=config)
    planned = make_plan(model.imported)
    if not request.closed:
        _check_region(request.region, sum(len(function.kernels) for function in planned.compiled.all_functions))
    machine = _machine(config.data_dir)
    probes = Probes(planned, config.threads)
    values, run, soundings = _first_call(model, probes, request)
    views = [_View(planned, None, explain(planned, machine, config.threads, probes, soundings, probes.time(run)))]
    if request.closed or request.region is None:
        views += _closed_view(model, machine, config.threads, run)
    if request.closed and len(views) == 1:
        raise InputError("the model has no open sizes, so that there is no function to close them in; drop --closed")
    shown = views[-1 if request.closed else 0]
    record = {
        "model": str(path),
        "machine": machine.key,
        "inputs": {name: brief(value) for name, value in values.items()},
    }
    _print_head(console, path, values, shown, machine)
    if request.html is not None:
        _write_page(console, path, request.html, values, views[0].explanation, probes)
    if request.region is None:
        rows = [function_row(view.explanation, view.signature) for view in views]
        _print_all(console, shown.explanation, machine)
        _print_functions(console, rows)
        functions = msgspec.to_builtins(rows)
        write_json(json_file, {**record, **shown.explanation.to_dict(), "functions": functions})
    else:
        _check_region(request.region, len(shown.explanation.regions))
        region = shown.explanation.regions[request.region]
        code = code_of(shown.planned, region, request.llvm, request.asm)
        _print_region(console, region, shown.explanation, code)
        write_json(json_file, {**record, "region": msgspec.to_builtins(region), "code": msgspec.to_builtins(code)})


def _closed_view(model: Model, machine: Machine, threads: int, run: Run) -> list[_View]:
    """The function that is closed to the sizes of the call that was made; none where no size is open."""
    ((shapes, _), *_) = model.signatures()
    signature = tuple(shape for shape in shapes if shape is not None)
    is_open = any(not isinstance(dim, int) for spec in model.inputs for dim in spec.shape or ())
    if not is_open or len(signature) < len(shapes):
        return []
    planned = plan_closed(model.imported, signature)
    probes = Probes(planned, threads)
    return [_View(planned, signature, explain(planned, machine, threads, probes, probes.sound(run), probes.time(run)))]


def _write_page(
    console: Console,
    path: Path,
    target: Path,
    values: dict[str, Any],
    explanation: Explanation,
    probes: Probes,
) -> None:
    """Watch the model get better from an empty cache, and write all of it as one page."""
    from tierup.explain.blocks import pictures_of
    from tierup.explain.observe import observe
    from tierup.explain.page import page

    inputs = ", ".join(f"{name} {brief(value).split('  ')[0]}" for name, value in values.items())
    summary = f"Called with {inputs or 'nothing'}; {explanation.target}, {_number(explanation.threads, 'thread')}."
    pictures = pictures_of(probes.functions, probes.node_spans)
    text = page(path.name, summary, explanation, pictures, observe(path, values))
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"'{target}' cannot be written: {error.strerror}") from error
    console.print(f"wrote {target}", markup=False, highlight=False)


def _check_region(region: int | None, count: int) -> None:
    if region is not None and not 0 <= region < count:
        known = f"its regions are 0 to {count - 1}" if count else "no part of it compiles to kernels"
        raise InputError(f"the model has no region {region}: {known}")


def _machine(data_dir: Path) -> Machine:
    try:
        return load_or_measure(data_dir)
    except StoreError:  # the user asked about the model, not about the folder
        return measure()


def _first_call(model: Model, probes: Probes, request: Request) -> tuple[dict[str, Any], Run, dict[int, Sounding]]:
    """Inputs, how to call the model with them, and what that call looked like; made-up ones may have to be larger."""
    for open_size in OPEN_SIZES:
        values, sources = gather_inputs(model.inputs, request.files, request.shapes, 0, open_size)

        def run(program: _native.Program, values: dict[str, Any] = values) -> Any:
            model.program = program
            return model.run(values)

        try:
            return values, run, probes.sound(run)
        except InputError as error:
            if "made up" not in sources.values():
                raise
            if open_size == OPEN_SIZES[-1]:
                raise InputError(f"{error}. Its inputs were made up: give them with --input or --shape") from error
    raise AssertionError("the last size returns or raises")


def _print_head(console: Console, path: Path, values: dict[str, Any], view: _View, machine: Machine) -> None:
    explanation, tier = view.explanation, "tier 1" if view.signature is None else "tier 2, closed to this call's sizes"
    inputs = ", ".join(f"{name} {brief(value).split('  ')[0]}" for name, value in values.items())
    threads = _number(explanation.threads, "thread")
    console.print(
        f"[bold]{escape(str(path))}[/bold]  {tier}, {explanation.target}, {threads}, called with "
        f"{escape(inputs) or 'nothing'}",
        highlight=False,
    )
    if not explanation.holds:
        broken = "; ".join(explanation.broken)
        console.print(
            "At these sizes the plan's guard fails, and the baseline answers the whole call. Sizes that were taken to "
            f"be equal are not: {broken}. Regions are shown without figures.",
            highlight=False,
            markup=False,
        )
    if not machine.measured.is_quiet:
        console.print(
            "The machine's peaks were measured while it was busy, so shares of the roofline are rough; run "
            "`tierup doctor --remeasure` when it is idle.",
            highlight=False,
        )


def _print_all(console: Console, explanation: Explanation, machine: Machine) -> None:
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


def _print_functions(console: Console, rows: Sequence[FunctionRow]) -> None:
    """The functions in short; nothing where there is one, which was shown."""
    if len(rows) < 2:
        return
    table = _table("function", "for inputs", "regions", "kernels", "alone", "time in kernels", "call", "arena")
    for row in rows:
        shapes = [f"[{', '.join(map(str, shape))}]" for shape in row.signature or ()]
        table.add_row(
            f"tier {row.tier}",
            escape(" ".join(shapes)) if row.signature is not None else "of any size",
            *map(str, (row.regions, row.kernels, row.alone)),
            _time(row.kernels_us),
            _time(row.call_us),
            _bytes(row.arena_bytes) if row.arena_bytes is not None else "",
        )
    console.print(table)


def _print_time(console: Console, explanation: Explanation, machine: Machine) -> None:
    call = f"A call takes {_time(explanation.call_us)} (median of {explanation.calls})."
    if not explanation.holds:
        console.print(call, highlight=False)
        return
    parts = [(_number(len(explanation.regions), "region"), _sum_us(explanation.regions))] if explanation.regions else []
    if explanation.alone:
        alone = _number(len(explanation.alone), "node")
        parts.append((f"{alone} in the reference tier", _sum_us(explanation.alone)))
    parts.append(("inputs, sizes, jumps, copies and results", explanation.rest_us))
    shown = ", ".join(f"{what} {_time(us)}" for what, us in parts)
    console.print(
        f"{call} Its parts, timed inside such calls, add up to {_time(explanation.parts_us)}: {shown}.",
        highlight=False,
    )
    if explanation.regions:
        console.print(
            f"A roofline is what {_number(explanation.threads, 'thread')} could reach: "
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
        notes.append(f"{_number(explanation.views, 'reshape')}: the same memory under other sizes.")
    if explanation.not_needed:
        count = _number(explanation.not_needed, "node")
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
            f"The arena for {_number(memory.values, 'value')} between kernels has {_bytes(memory.arena_bytes)}{least}.",
            highlight=False,
        )


def _print_region(console: Console, region: Region, explanation: Explanation, code: Code) -> None:
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
    for name, text in (*_figures(region), *_choices(region, explanation)):
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


def _choices(region: Region, explanation: Explanation) -> list[tuple[str, str]]:
    """The recipe, line by line."""
    recipe = region.recipe
    found = [("kernel", f"{region.kernel} of {explanation.kernels}, in {region.shared_by} of the regions")]
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
    steps = _number(recipe.steps or 0, "step")
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


def _number(count: int, noun: str) -> str:
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
