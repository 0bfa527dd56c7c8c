"""Plan -> native program: binds call-outs to reference functions and constants to weights.

`executable` binds a plan that was just made, `restored` one that comes out of the plan cache. The latter imports
neither the op table nor the reference before a call-out runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tierup import _native
from tierup.errors import StoreError
from tierup.ir.facts import Signature, native_facts
from tierup.ir.types import Array
from tierup.runtime.constants import Constants, WeightTable, bind_constants

if TYPE_CHECKING:  # a warm start needs none of them
    from tierup.frontends.onnx import Imported
    from tierup.ir.graph import Graph, Node, Weights
    from tierup.plan.program import Plan
    from tierup.store.records import CalloutRecord, PlanRecord
    from tierup.store.weights import StoredWeights

_LARGE_BYTES = 1 << 20
_MOST_SEEN = 64  # signatures that are counted

Callout = Callable[..., tuple[Any, ...]]
RunGraph = Callable[["Graph", Sequence[Any]], list[Any]]


class Baseline:
    """Answers a whole call with the graph as imported, where a plan's guard fails; counts how often, and with which
    signatures."""

    def __init__(self, imported: Callable[[], Imported]) -> None:
        self._imported = imported
        self._lock = threading.Lock()
        self.calls = 0
        self.since = 0  # the number of the model's call from which on it is asked
        self._seen: dict[Signature, int] = {}

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        from tierup.reference.evaluate import evaluate

        shapes: tuple[Any, ...] = tuple(getattr(value, "shape", None) for value in inputs)
        with self._lock:
            self.calls += 1
            if None not in shapes:
                self._seen[shapes] = self._seen.pop(shapes, 0) + 1
            if len(self._seen) > _MOST_SEEN:
                del self._seen[next(iter(self._seen))]  # what did not come for longest
        imported = self._imported()
        return tuple(evaluate(imported.graph, imported.weights, inputs))

    def seen(self) -> dict[Signature, int]:
        """How many calls it has answered of each signature that came lately."""
        with self._lock:
            return dict(self._seen)


def executable(
    plan: Plan,
    weights: Weights,
    *,
    baseline: Baseline | None = None,
    threads: int = 1,
    constants: Constants | None = None,
) -> _native.Program:
    """The program that runs `plan`; it holds the weights it uses. `baseline` answers where a guard fails.

    Plans with kernels get their constants where kernels like them, as `bind_plan` gives them; the baseline takes
    weights as they are.
    """
    from tierup.plan.program import BASELINE

    own = [node for node in plan.callouts if baseline is None or node.op != BASELINE]
    run_graph = _runner(_subset(weights, weights_of(own)))
    if plan.slots:
        bound = list((constants or bind_plan(plan, weights, threads)).values())
    else:
        bound = [_aligned(weights[constant]) for constant in plan.constants if isinstance(constant, str)]
    return _native.Program(
        functions=[function.native() for function in plan.functions],
        callouts=[
            baseline if baseline is not None and node.op == BASELINE else bind_node(node, run_graph)
            for node in plan.callouts
        ],
        constants=bound,
        slots=plan.slots,
        facts=native_facts(plan.facts),
    )


def bind_plan(plan: Plan, weights: Weights, threads: int = 1, known: Constants | None = None) -> Constants:
    """The constants of a plan with kernels; those that are known are not made again."""
    wanted = [(constant,) if isinstance(constant, str) else constant for constant in plan.constants]
    return bind_constants(wanted, weights, threads, known=known)


def restored(record: PlanRecord, weights: StoredWeights, baseline: Baseline, constants: Constants) -> _native.Program:
    """The program that a record describes. ValueError if it cannot be one."""
    return _native.Program(
        functions=[function.native() for function in record.functions],
        callouts=[_StoredCallout(callout, weights) if callout.text else baseline for callout in record.callouts],
        constants=list(constants.values()),
        slots=record.slots,
        facts=native_facts(record.facts),
    )


class _StoredCallout:
    """A call-out that is parsed and bound when it is first called."""

    def __init__(self, record: CalloutRecord, weights: WeightTable) -> None:
        self._record, self._weights = record, weights
        self._bound: Callout | None = None

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        if self._bound is None:
            self._bound = self._bind()
        return self._bound(*inputs)

    def _bind(self) -> Callout:
        from tierup.runtime.setup import register_dtypes
        from tierup.store.records import node_of

        register_dtypes()  # it may return any of them
        try:
            return bind_node(node_of(self._record), _runner(self._weights))
        except (ValueError, LookupError) as error:
            raise StoreError(f"the plan cache has a call-out that is none ({error}); clear the cache") from error


def bind_node(node: Node, run_graph: RunGraph) -> Callout:
    """A node as a Python function; control flow that native steps cannot express runs in the evaluator's way."""
    from tierup.plan.program import BASELINE, BODY
    from tierup.reference.bind import bind
    from tierup.reference.control import CONTROL

    if node.op in (BASELINE, BODY):
        return lambda *inputs: tuple(run_graph(node.graphs[0][1], inputs))
    control = CONTROL.get(node.op)
    if control is None:
        return bind(node, run_graph)

    def call(*inputs: Any) -> tuple[Any, ...]:
        return tuple(control(node, list(inputs), run_graph))[: len(node.outputs)]

    return call


def _runner(weights: Any) -> RunGraph:
    def run_graph(body: Graph, inputs: Sequence[Any]) -> list[Any]:
        from tierup.reference.evaluate import evaluate

        return evaluate(body, weights, inputs)

    return run_graph


def _aligned(array: Array) -> Array:
    """A mapped weight may start at any byte; NumPy copies such an array in many functions, so copy it once. Not a large
    one: copies of those together would be as large as the model, and one for a call costs little beside the call."""
    return array if array.flags.aligned or array.nbytes > _LARGE_BYTES else array.copy()


def _subset(weights: Weights, digests: Sequence[str]) -> Weights:
    """Those weights alone, so that a program does not keep the others."""
    from tierup.ir.graph import Weights

    kept = Weights()
    for digest in digests:
        kept.add(weights[digest], digest)
    return kept


def weights_of(nodes: Iterable[Node]) -> list[str]:
    """The digests of the weights that the bodies of these nodes use."""
    bodies = [body for node in nodes for _, body in node.graphs]
    inner = [body for outer in bodies for _, node in outer.walk() for _, body in node.graphs]
    return [digest for body in (*bodies, *inner) for _, digest in (*body.weights, *body.defaults)]
