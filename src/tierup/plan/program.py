"""The form of a plan: functions of steps, in the numbers of `docs/native-program.md`, with names around them.

A plan is plain data: it prints, compares and hashes. Call-outs name graph nodes and constants name weights; the run
time binds both when it loads the plan.
"""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct, field

from tierup.ir.facts import Fact, Signature
from tierup.ir.graph import Node


class DimCode(IntEnum):
    """Instructions of dim code."""

    CONST = 0
    ADD = 1
    SUB = 2
    MUL = 3
    FLOORDIV = 4
    CEILDIV = 5
    MOD = 6
    MIN = 7
    MAX = 8
    EQ = 9
    LT = 10
    SELECT = 11
    BROADCAST = 12
    OF = 13
    ELEM = 14
    ALIGN = 15
    TRUNCDIV = 16
    ABS = 17
    STRIDE = 18
    DENSE = 19


class StepCode(IntEnum):
    """Steps of a function."""

    DIMS = 0
    ALLOC = 1
    CONSTANT = 2
    CALLOUT = 3
    KERNEL = 4
    COPY = 5
    MOVE = 6
    FREE = 7
    JUMP = 8
    BRANCH = 9
    BRANCH_DIM = 10
    CALL = 11
    SCALAR = 12
    INDEX = 13
    PUSH = 14
    STACK = 15
    ARENA = 16
    DEFAULT = 17
    VIEW = 18


Constant = str | tuple[str, int] | tuple[str, int, str]
BASELINE = "plan.baseline"  # a call-out that answers the whole call: its body is the graph as imported
BODY = "plan.body"  # a call-out that runs its body, a whole function, in the reference
ABSENT = -1  # an input that is left out, or an output that nobody wants

# What the operands of each step are, for the printer: v value, d dim, n literal, t target, f function, c call-out,
# k constant, s slot; capital letters are lists.
_OPERANDS = {
    StepCode.DIMS: "nn", StepCode.ALLOC: "vnndD", StepCode.CONSTANT: "vk", StepCode.CALLOUT: "cVV",
    StepCode.KERNEL: "sVDddd", StepCode.COPY: "vv", StepCode.MOVE: "vv", StepCode.FREE: "v", StepCode.JUMP: "t",
    StepCode.BRANCH: "vt", StepCode.BRANCH_DIM: "dt", StepCode.CALL: "fVV", StepCode.SCALAR: "vnd",
    StepCode.INDEX: "vvnd", StepCode.PUSH: "vv", StepCode.STACK: "vvnnnD", StepCode.ARENA: "d",
    StepCode.DEFAULT: "vk", StepCode.VIEW: "vvD",
}  # fmt: skip


class Function(Struct, frozen=True):
    """A closed piece of code. Steps and dim code are tuples of integers."""

    name: str
    n_values: int
    n_dims: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dim_code: tuple[tuple[int, int, int, int, int], ...]
    steps: tuple[tuple[int, ...], ...]

    def native(self) -> tuple[object, ...]:
        """The form that the native program takes."""
        return (self.n_values, self.n_dims, self.inputs, self.outputs, self.dim_code, self.steps)


class Variant(Struct, frozen=True):
    """A kernel, by its number, that is called instead of a slot's open one where the step's sizes, from the `first` on,
    and its range are the `key`. Where it relies on facts, the key is longer by a number: a bit for each of them."""

    slot: int
    kernel: int
    first: int
    key: tuple[int, ...]
    range: int
    grain: int
    scratch: int


class Plan(Struct, frozen=True):
    """Function 0 answers calls. `callouts` are the nodes that run in Python.

    `constants` are digests of weights, or (digest, width): that matrix packed in panels of as many columns, or
    (digest, width, form): the same in words of a form that `packing.py` names. `strays` are calls in which sizes differ
    that function 0 takes to be equal: calls like them have functions of their own.
    """

    functions: tuple[Function, ...]
    callouts: tuple[Node, ...]
    constants: tuple[Constant, ...]
    slots: int = 0
    variants: tuple[Variant, ...] = ()
    facts: tuple[Fact, ...] = ()
    strays: tuple[Signature, ...] = ()

    def __repr__(self) -> str:
        return print_plan(self)

    @property
    def fallback_nodes(self) -> int:
        """How many nodes run in Python whenever a call gets to them."""
        return sum(_count_nodes(node) for node in self.callouts if node.op != BASELINE)

    @property
    def kernels(self) -> int:
        """How many kernels there are: one for each slot, and those of variants."""
        return max((self.slots, *(variant.kernel + 1 for variant in self.variants)))

    def count(self, code: StepCode) -> int:
        """How many steps of one kind all functions have together."""
        return sum(step[0] == code for function in self.functions for step in function.steps)


def _count_nodes(node: Node) -> int:
    return sum(1 for _ in node.graphs[0][1].walk()) if node.op == BODY else 1


class Assembler(Struct):
    """Writes one function."""

    name: str
    n_values: int
    n_dims: int = 0
    dim_code: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    steps: list[tuple[int, ...]] = field(default_factory=list)

    def value(self) -> int:
        """A new value register."""
        self.n_values += 1
        return self.n_values - 1

    def dim(self) -> int:
        """A new dim register."""
        self.n_dims += 1
        return self.n_dims - 1

    def dims(self, *instructions: tuple[int, ...]) -> None:
        """Run these dim instructions now: (code, dst, a, b, c), short ones filled up with zeros."""
        begin = len(self.dim_code)
        for instruction in instructions:
            code, dst, a, b, c = (*instruction, 0, 0, 0)[:5]
            self.dim_code.append((int(code), dst, a, b, c))
        self.emit(StepCode.DIMS, begin, len(self.dim_code))

    def emit(self, code: StepCode, *operands: int | list[int]) -> int:
        """Append a step and return its position; lists are written with their length in front."""
        flat: list[int] = [int(code)]
        for operand in operands:
            flat += [len(operand), *operand] if isinstance(operand, list) else [operand]
        self.steps.append(tuple(flat))
        return len(self.steps) - 1

    def land(self, *jumps: int) -> None:
        """Let these jumps or branches, written with a target of 0, go to the next step."""
        for position in jumps:
            self.steps[position] = (*self.steps[position][:-1], len(self.steps))

    def finish(self, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Function:
        code, steps = tuple(self.dim_code), tuple(self.steps)
        return Function(self.name, self.n_values, self.n_dims, inputs, outputs, code, steps)


def print_plan(plan: Plan) -> str:
    """The plan as text, for people and for tests."""
    lines: list[str] = []
    for index, function in enumerate(plan.functions):
        ins, outs = (", ".join(f"v{r}" for r in registers) for registers in (function.inputs, function.outputs))
        lines.append(f'function {index} "{function.name}" ({ins}) -> ({outs})')
        for position, step in enumerate(function.steps):
            lines.append(f"  {position:4} {_print_step(step, function, plan)}")
    return "\n".join(lines) + "\n"


def _print_step(step: tuple[int, ...], function: Function, plan: Plan) -> str:
    code, rest = StepCode(step[0]), list(step[1:])
    if code is StepCode.DIMS:
        parts = [_print_dim(instruction) for instruction in function.dim_code[rest[0] : rest[1]]]
        return "dims " + "; ".join(parts)
    words = [code.name.lower()]
    for kind in _OPERANDS[code]:
        if kind.isupper():
            count = rest.pop(0)
            items, rest = rest[:count], rest[count:]
            words.append("(" + ", ".join(_print_operand(kind.lower(), item, plan) for item in items) + ")")
        else:
            words.append(_print_operand(kind, rest.pop(0), plan))
    return " ".join(words)


def _print_dim(instruction: tuple[int, ...]) -> str:
    code, dst, *args = instruction
    return f"d{dst} = {DimCode(code).name.lower()} {' '.join(map(str, args))}"


def _print_operand(kind: str, operand: int, plan: Plan) -> str:
    if operand == ABSENT:
        return "_"
    if kind == "c":
        node = plan.callouts[operand]
        return f"{node.op}@{node.version}"
    if kind == "k":
        constant = plan.constants[operand]
        if isinstance(constant, str):
            return f"@{constant[:12]}"
        return f"@{constant[0][:12]} in panels of {constant[1]}" + "".join(f", {form}" for form in constant[2:])
    return {"t": "-> ", "f": "function ", "s": "slot ", "n": ""}.get(kind, kind) + str(operand)
