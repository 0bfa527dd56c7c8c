"""`tierup explain`: what a model's plan fuses and refuses, and why; what each region costs, and its code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from rich.console import Console

from tierup import _native
from tierup.adapt.planning import Planned, make_plan
from tierup.cli.explain_text import counted, print_all, print_functions, print_head, print_region
from tierup.cli.inputs import sound_inputs
from tierup.cli.show import brief, write_json
from tierup.codegen.objects import leave_addresses
from tierup.config import Config
from tierup.errors import InputError, StoreError
from tierup.explain.explanation import Explanation, code_of, explain
from tierup.explain.functions import as_called, facts_in, function_row, plan_closed
from tierup.explain.probe import Probes, Run, Sounding
from tierup.ir.facts import Aim
from tierup.profile.machine import Machine, load_or_measure, measure
from tierup.runtime.progress import Signature
from tierup.session import Model, load


class Request(Struct, frozen=True):
    """What the user asked for."""

    files: Sequence[str]
    shapes: Sequence[str]
    region: int | None
    llvm: bool
    asm: bool
    closed: bool = False
    html: Path | None = None


class _View(Struct, frozen=True):
    """One function of the model, explained; `signature` is what it is closed to."""

    planned: Planned
    signature: Signature | None
    explanation: Explanation
    stray: bool = False

    @property
    def facts(self) -> tuple[str, ...]:
        """What some of its kernels rely on, in words."""
        return tuple(map(str, self.planned.compiled.plan.facts))

    @property
    def where(self) -> str:
        """Which calls it answers; empty: all."""
        relying = f", where {' and '.join(self.facts)}" if self.facts else ""
        return "" if self.signature is None else f"closed to this call's sizes{relying}"


def explain_model(path: Path, request: Request, json_file: Path | None) -> None:
    """Plan the model, probe calls of it, and print all regions or everything about one."""
    if (request.llvm or request.asm) and request.region is None:
        raise InputError("--llvm and --asm show the code of one region; say which: --region R")
    leave_addresses()  # so that what is shown and timed here is what workers build
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
    strays = () if views[0].explanation.holds else _signature(model)
    if strays and request.region is None:
        views.append(_stray_view(model, machine, config.threads, run, strays))
    if request.closed or request.region is None:
        views += _closed_view(model, machine, config.threads, run, values, strays)
    if request.closed and views[-1].signature is None:
        raise InputError("the model has no open sizes, so that there is no function to close them in; drop --closed")
    shown = views[-1 if request.closed else 0]
    record = {
        "model": str(path),
        "machine": machine.key,
        "inputs": {name: brief(value) for name, value in values.items()},
    }
    print_head(console, path, values, shown.explanation, shown.where, machine)
    if request.html is not None:
        _write_page(console, path, request.html, values, views[0].explanation, probes)
    if request.region is None:
        rows = [function_row(view.explanation, view.signature, view.facts, view.stray) for view in views]
        print_all(console, shown.explanation, machine)
        print_functions(console, rows)
        functions = msgspec.to_builtins(rows)
        write_json(json_file, {**record, **shown.explanation.to_dict(), "functions": functions})
    else:
        _check_region(request.region, len(shown.explanation.regions))
        region = shown.explanation.regions[request.region]
        code = code_of(shown.planned, region, request.llvm, request.asm)
        print_region(console, region, shown.explanation, code)
        write_json(json_file, {**record, "region": msgspec.to_builtins(region), "code": msgspec.to_builtins(code)})


def _signature(model: Model) -> tuple[Signature, ...]:
    """That of the call that was made; none where an input is no tensor."""
    ((shapes, _), *_) = model.signatures()
    signature = tuple(shape for shape in shapes if shape is not None)
    return (signature,) if len(signature) == len(shapes) else ()


def _stray_view(model: Model, machine: Machine, threads: int, run: Run, strays: tuple[Signature, ...]) -> _View:
    """The function that calls like the one that was made get if they come often."""
    planned = make_plan(model.imported, Aim(strays=strays))
    probes = Probes(planned, threads)
    explanation = explain(planned, machine, threads, probes, probes.sound(run), probes.time(run))
    return _View(planned, None, explanation, stray=True)


def _closed_view(
    model: Model, machine: Machine, threads: int, run: Run, values: dict[str, Any], strays: tuple[Signature, ...]
) -> list[_View]:
    """What tier 2 runs for the sizes of the call that was made, and for what holds in it; none where no size is open
    and nothing is relied on."""
    is_open = any(not isinstance(dim, int) for spec in model.inputs for dim in spec.shape or ())
    found = _signature(model)
    if not found:
        return []
    (signature,) = found
    planned = plan_closed(model.imported, signature, facts_in(model.inputs, values), strays)
    if not is_open and not planned.compiled.plan.facts:
        return []
    probes = Probes(planned, threads)
    functions, soundings = as_called(planned, probes, probes.sound(run))
    explanation = explain(planned, machine, threads, probes, soundings, probes.time(run), functions)
    return [_View(planned, signature, explanation)]


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
    summary = f"Called with {inputs or 'nothing'}; {explanation.target}, {counted(explanation.threads, 'thread')}."
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

    def run_with(values: dict[str, Any]) -> Run:
        def run(program: _native.Program) -> Any:
            model.program = program
            return model.run(values)

        return run

    values, _, soundings = sound_inputs(
        model.inputs, request.files, request.shapes, 0, lambda values: probes.sound(run_with(values))
    )
    return values, run_with(values), soundings
