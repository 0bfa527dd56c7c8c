"""`tierup inspect`: what a model takes, gives and is made of."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from msgspec import Struct
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tierup.cli.show import shape_text, write_json
from tierup.codegen.target import AVX2, target_of
from tierup.frontends.onnx.schema import onnx_type
from tierup.ir.graph import Weights
from tierup.profile.identity import identify
from tierup.rewrite.decompose import reasons
from tierup.rewrite.rewrite import simplify
from tierup.runtime.compiled import Compiled, Function, compile_plan
from tierup.session import Model, load

_SHOWN = 12  # ops listed without --ops


class Lowering(Struct, frozen=True):
    """How a model's nodes fare on the way to core ops."""

    imported: int
    simplified: int
    core: Counter[str]
    control: Counter[str]  # nodes that are jumps and calls
    whole: list[tuple[str, str, int]]  # other op that calls out, reason, how many nodes
    regions: Counter[str]  # kind -> how many kernels a forced tier would run
    compiled: int  # core ops inside them
    alone: list[tuple[str, str, int]]  # core op that calls out, why it is in no region, how many nodes


def inspect_model(path: Path, all_ops: bool, graph: bool, json_file: Path | None) -> None:
    """Print the model's signature and ops; with `graph`, its text instead."""
    console = Console()
    model = load(path)
    if graph:
        console.print(repr(model.imported.graph), markup=False, highlight=False, soft_wrap=True)
        return
    ops = Counter(node.op for _, node in model.imported.graph.walk())
    lowering = _lowering(model)
    _print_signature(console, path, model)
    _print_ops(console, ops, all_ops)
    _print_lowering(console, lowering)
    _print_refused(console, model)
    write_json(json_file, _record(path, model, ops, lowering))


def _lowering(model: Model) -> Lowering:
    imported = model.imported
    weights = Weights()  # a copy: what is folded here is only looked at
    for digest in imported.weights:
        weights.add(imported.weights[digest], digest)
    simplified = simplify(imported.graph, weights)
    compiled = compile_plan(imported.graph, weights, target_of(identify()) or AVX2)  # the same for every target
    functions = compiled.all_functions
    nodes = [node for function in functions for node in function.graph.nodes]
    alone = _alone(compiled, weights)
    called_out = {id(found.node) for function in functions for found in function.alone}
    return Lowering(
        imported=sum(1 for _ in imported.graph.walk()),
        simplified=sum(1 for _ in simplified.walk()),
        core=Counter(node.op for node in nodes if node.op.startswith("core.")),
        control=Counter(node.op for node in nodes if node.graphs and id(node) not in called_out),
        whole=[row for row in alone if not row[0].startswith("core.")],
        regions=Counter(placed.region.kind for function in functions for placed in function.kernels),
        compiled=sum(map(_count_compiled, functions)),
        alone=[row for row in alone if row[0].startswith("core.")],
    )


def _count_compiled(function: Function) -> int:
    regions = [placed.region for placed in function.kernels]
    return len({index for region in regions for index in (*region.nodes, *region.reads)})


def _alone(compiled: Compiled, weights: Weights) -> list[tuple[str, str, int]]:
    """Every node that calls out, bodies included; what has no decomposition says why."""
    undone = {(node.op, node.name): reason for node, reason in reasons(compiled.graph, weights) if not node.graphs}
    found = Counter(
        (alone.node.op, undone.get((alone.node.op, alone.node.name), alone.reason))
        for function in compiled.all_functions
        for alone in function.alone
    )
    return [(op, reason, count) for (op, reason), count in found.most_common()]


def _print_signature(console: Console, path: Path, model: Model) -> None:
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in model.imported.opsets)
    weights = model.imported.weights
    console.print(f"[bold]{escape(str(path))}[/bold]  opset {escape(opsets)}", highlight=False)
    console.print(f"{len(weights)} weights, {weights.total_bytes / 2**20:.1f} MiB", highlight=False)
    table = Table("", "name", "type", "shape", box=None, pad_edge=False)
    for value in model.inputs:
        kind = "input" if value.required else "optional"
        table.add_row(kind, escape(value.name), onnx_type(value.type), escape(shape_text(value.shape)))
    for result in model.outputs:
        table.add_row("output", escape(result.name), onnx_type(result.type), escape(shape_text(result.shape)))
    console.print(table)


def _print_ops(console: Console, ops: Counter[str], all_ops: bool) -> None:
    shown = ops.most_common(None if all_ops else _SHOWN)
    text = ", ".join(f"{count} {op}" for op, count in shown)
    rest = len(ops) - len(shown)
    more = f", and {rest} other ops (--ops lists them)" if rest else ""
    console.print(f"{sum(ops.values())} nodes: {text}{more}", highlight=False, markup=False)


def _print_lowering(console: Console, lowering: Lowering) -> None:
    core = sum(lowering.core.values())
    kinds = ", ".join(f"{count} {kind}" for kind, count in lowering.regions.most_common()) or "none"
    rows = [*lowering.whole, *lowering.alone]
    rest = "what falls back is listed" if rows else "nothing falls back"
    console.print(
        f"{lowering.imported} nodes, {lowering.simplified} after simplification, lowered to {core} core ops. "
        f"{lowering.compiled} of what a call needs of them compile into kernels ({kinds}); {rest}.",
        highlight=False,
    )
    if lowering.control:
        control = ", ".join(f"{count} {op}" for op, count in lowering.control.most_common())
        console.print(f"{control}: jumps and calls, their bodies compiled like the rest.", highlight=False)
    if rows:
        table = Table("falls back", "nodes", "because", box=None, pad_edge=False)
        for op, reason, count in rows:
            table.add_row(op, str(count), escape(reason))
        console.print(table)


def _print_refused(console: Console, model: Model) -> None:
    """What the plan in the cache does without."""
    refused = model.report().refused
    if refused:
        table = Table("refused when it was built", "because", box=None, pad_edge=False)
        for region, reason in refused:
            table.add_row(escape(region), escape(reason))
        console.print(table)


def _record(path: Path, model: Model, ops: Counter[str], lowering: Lowering) -> dict[str, Any]:
    def described(values: Any) -> list[dict[str, Any]]:
        return [{"name": v.name, "type": onnx_type(v.type), "shape": v.shape and list(v.shape)} for v in values]

    return {
        "model": str(path),
        "opsets": dict(model.imported.opsets),
        "inputs": described(model.inputs),
        "outputs": described(model.outputs),
        "ops": dict(ops.most_common()),
        "weights_bytes": model.imported.weights.total_bytes,
        "lowering": {
            "imported_nodes": lowering.imported,
            "simplified_nodes": lowering.simplified,
            "core_ops": dict(lowering.core.most_common()),
            "control": dict(lowering.control),
            "whole": [{"op": op, "reason": reason, "nodes": count} for op, reason, count in lowering.whole],
            "kernels": dict(lowering.regions),
            "refused": [{"region": region, "reason": reason} for region, reason in model.report().refused],
            "fallbacks": [{"op": op, "reason": reason, "nodes": count} for op, reason, count in lowering.alone],
        },
    }
