"""What was chosen for a kernel, as explanations show it."""

from __future__ import annotations

from tierup.explain.probe import Passed
from tierup.explain.recipe import recipe_of
from tierup.ir.graph import Graph
from tierup.lower.kernel import Kernel
from tierup.lower.tile import Grid, TileProgram


def test_a_step_may_be_more_than_a_threads_share() -> None:
    """A grain of 0 steps is one; native code takes it so, too."""
    program = TileProgram("rows", (), 0, (Grid("g0", 12, 1),), (), ())
    kernel = Kernel(program, (), (), ((12, 1),), grain=0)
    graph = Graph(inputs=(), outputs=(), nodes=(), values=(), dims=(), weights=())
    recipe = recipe_of(graph, kernel, Passed((), 0, steps=12, grain=0), threads=2)
    assert recipe.pieces == recipe_of(graph, kernel, Passed((), 0, steps=12, grain=1), threads=2).pieces
    assert recipe.threads == 2
