"""The `tierup` command. Commands import what they need when they run, so that --help answers at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

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
