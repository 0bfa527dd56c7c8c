"""The `tierup` command. Commands import what they need when they run, so that --help answers at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from tierup.errors import TierupError

app = typer.Typer(
    name="tierup",
    help="Runs a neural network at once and makes it faster while it serves.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.", show_default=False)]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the figures as JSON.")]


@app.callback()
def _root() -> None:
    """Runs a neural network at once and makes it faster while it serves."""


@app.command(epilog="Example: tierup run model.onnx --shape x=1,3,224,224 --calls 100")
def run(
    model: ModelPath,
    input: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE.npy", help="An input from a file; FILE.npz gives all that it names."),
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(metavar="NAME=1,3,224,224", help="Make up this input in this shape.")
    ] = None,
    calls: Annotated[int, typer.Option(min=1, max=10_000_000, help="How often to call the model.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="For inputs that are made up.")] = 0,
    json: JsonFile = None,
) -> None:
    """Load a model, answer, and show what happens. Inputs that are not given are made up."""
    from tierup.cli.run import run_model

    run_model(model, input or [], shape or [], calls, seed, json)


@app.command(epilog="Example: tierup inspect model.onnx --ops")
def inspect(
    model: ModelPath,
    ops: Annotated[bool, typer.Option("--ops", help="List every op, not only the most frequent.")] = False,
    graph: Annotated[bool, typer.Option("--graph", help="Print the whole graph as text.")] = False,
    json: JsonFile = None,
) -> None:
    """Show a model's inputs, outputs and ops: what is lowered to core ops, and what stays whole and why."""
    from tierup.cli.inspect import inspect_model

    inspect_model(model, ops, graph, json)


@app.command(epilog="Example: tierup bench encoder.onnx --against onnxruntime,openvino --traffic ids=1,8..128")
def bench(
    model: ModelPath,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Contenders, separated by commas: onnxruntime, onnxruntime-bound, openvino, openvino-bf16, "
            "tierup-bf16, torch-eager, torch-compile, torch (both).",
            show_default="onnxruntime,openvino; torch where there is a source",
        ),
    ] = None,
    traffic: Annotated[
        str | None,
        typer.Option(metavar="T", help="Calls of changing shapes: NAME=1,8..128 draws sizes; a .jsonl lists shapes."),
    ] = None,
    cache: Annotated[
        Literal["warm", "empty"],
        typer.Option(
            help="What the cold processes of a traffic find on disk: what a run before them left, or nothing."
        ),
    ] = "warm",
    calls: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="Calls of the traffic.", show_default="2000, or the file's")
    ] = None,
    input: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE.npy", help="An input from a file; FILE.npz gives all that it names."),
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(metavar="NAME=1,3,224,224", help="Draw this input in this shape.")
    ] = None,
    source: Annotated[
        str, typer.Option(metavar="FILE.py:NAME", help="A function that builds the exported torch module. It is run.")
    ] = "",
    rounds: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Rounds of each contender.", show_default="9, or 3 of traffic")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.001, max=3600, help="How long a round takes.")] = 0.5,
    starts: Annotated[int, typer.Option(min=0, max=1000, help="Fresh processes for the first answer.")] = 3,
    sets: Annotated[int, typer.Option(min=1, max=1000, help="Sets of drawn inputs that calls rotate over.")] = 8,
    settle: Annotated[float, typer.Option(min=0, max=86_400, help="Seconds that Tierup may take to settle.")] = 60,
    seed: Annotated[int, typer.Option(min=0, help="For inputs and sizes that are drawn.")] = 0,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw the figures, as SVG.")] = None,
    json: JsonFile = None,
) -> None:
    """Measure Tierup beside other libraries: own processes, one awake at a time, rounds in turn, answers compared."""
    from tierup.cli.bench import Request, bench_model

    request = Request(
        files=input or [],
        shapes=shape or [],
        traffic=traffic,
        cache=cache,
        calls=calls,
        sets=sets,
        seed=seed,
        against=against,
        source=source,
        rounds=rounds,
        seconds=seconds,
        starts=starts,
        settle_s=settle,
    )
    bench_model(model, request, json, plot)


@app.command(epilog="Example: tierup explain encoder.onnx --shape ids=1,128 --region 3 --llvm")
def explain(
    model: ModelPath,
    region: Annotated[
        int | None, typer.Option(metavar="R", help="Show everything about one region, by its number in the table.")
    ] = None,
    closed: Annotated[
        bool, typer.Option("--closed", help="Show the kernels that are closed to this call's sizes (tier 2).")
    ] = False,
    llvm: Annotated[bool, typer.Option("--llvm", help="With --region: also print its LLVM IR.")] = False,
    asm: Annotated[bool, typer.Option("--asm", help="With --region: also print its assembly.")] = False,
    input: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE.npy", help="An input from a file; FILE.npz gives all that it names."),
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(metavar="NAME=1,3,224,224", help="Make up this input in this shape.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write one page: graph, latency while it gets better, decisions."),
    ] = None,
    json: JsonFile = None,
) -> None:
    """Show what was fused and what was not, and why; what each region costs, and how near it is to the roofline."""
    from tierup.cli.explain import Request, explain_model

    explain_model(model, Request(input or [], shape or [], region, llvm, asm, closed, html), json)


@app.command(epilog="Example: tierup doctor --json machine.json")
def doctor(
    remeasure: Annotated[bool, typer.Option("--remeasure", help="Measure again, though it was done before.")] = False,
    json: JsonFile = None,
) -> None:
    """Show what this machine is and can do, and what is missing. Measures once, in about three seconds."""
    from rich.console import Console

    from tierup.cli.doctor import show
    from tierup.config import Config

    data_dir = Config().data_dir
    assert data_dir is not None  # Config fills it in
    show(data_dir, json, remeasure, Console())


cache_app = typer.Typer(help="What is kept of models on this machine: kernels, plans, what was learned.")
app.add_typer(cache_app, name="cache", no_args_is_help=True)


@cache_app.command("ls", epilog="Example: tierup cache ls --json cache.json")
def cache_ls(json: JsonFile = None) -> None:
    """List kernels, plans, decisions and what is in quarantine."""
    from rich.console import Console

    from tierup.cli.cache import list_caches
    from tierup.config import Config

    list_caches(Config(), json, Console())


@cache_app.command("explain", epilog="Example: tierup cache explain model.onnx --json why.json")
def cache_explain(model: ModelPath, json: JsonFile = None) -> None:
    """Say whether a model starts from the cache, and which part of the key differs if it does not."""
    from rich.console import Console

    from tierup.cli.cache import explain_cache
    from tierup.config import Config

    explain_cache(model, Config(), json, Console())


@cache_app.command("verify", epilog="Example: tierup cache verify --json damage.json")
def cache_verify(json: JsonFile = None) -> None:
    """Read everything and remove what is damaged; exit code 1 if anything was, or if a store cannot be opened."""
    from rich.console import Console

    from tierup.cli.cache import verify_caches
    from tierup.config import Config

    sys.exit(0 if verify_caches(Config(), json, Console()) else 1)


@cache_app.command("clear", epilog="Example: tierup cache clear")
def cache_clear() -> None:
    """Remove everything: it can be made and learned again."""
    from rich.console import Console

    from tierup.cli.cache import clear_caches
    from tierup.config import Config

    sys.exit(0 if clear_caches(Config(), Console()) else 1)


def main() -> None:
    """Run the command line; an error that was raised on purpose is one sentence, and exit code 1."""
    try:
        app()
    except TierupError as error:
        sys.stderr.write(f"tierup: {error}\n")
        sys.exit(1)
    except BrokenPipeError:  # the reader of our output has left
        sys.stderr.close()
        sys.exit(1)
