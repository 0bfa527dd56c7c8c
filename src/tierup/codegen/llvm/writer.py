"""Writes LLVM IR text: fresh names, labels, and the declarations that the text turns out to need."""

from __future__ import annotations

from msgspec import Struct, field


class Writer(Struct):
    """The body of one function. Values are names like `%v12` or literals; types are LLVM's own words.

    `avx512`: the target has its instructions: 16 lanes each choose one of 16 floats, or are scaled by powers of two.
    `second_of_nan`: its min and max of floats give their second operand where one is NaN (x86).
    """

    lines: list[str] = field(default_factory=list)
    declarations: set[str] = field(default_factory=set)
    label: str = "entry"  # of the block that is being written
    avx512: bool = False
    second_of_nan: bool = False
    _count: int = 0

    def name(self, hint: str = "v") -> str:
        """A name that nobody has."""
        self._count += 1
        return f"%{hint}{self._count}"

    def value(self, instruction: str, hint: str = "v") -> str:
        """Write `name = instruction` and return the name."""
        name = self.name(hint)
        self.lines.append(f"  {name} = {instruction}")
        return name

    def do(self, instruction: str) -> None:
        """Write an instruction that has no result."""
        self.lines.append(f"  {instruction}")

    def call(self, result: str, function: str, *arguments: tuple[str, str]) -> str:
        """Call an intrinsic with (type, value) arguments; it is declared by itself."""
        types = ", ".join(kind for kind, _ in arguments)
        self.declarations.add(f"declare {result} @{function}({types})")
        given = ", ".join(f"{kind} {value}" for kind, value in arguments)
        return self.value(f"call {result} @{function}({given})")

    def settled(self, kind: str, value: str) -> str:
        """The same vector of AVX-512, by an assembly of no instruction: LLVM looks for better ways through chains of
        shuffles, and finds none. An attention kernel takes a fifth less to compile."""
        return self.value(f'call {kind} asm "", "=v,0"({kind} {value})')

    def fresh_label(self, hint: str) -> str:
        """A label that nobody has."""
        self._count += 1
        return f"{hint}{self._count}"

    def start(self, label: str) -> None:
        """Begin a new block; the one before must have ended with a branch."""
        self.lines.append(f"{label}:")
        self.label = label

    def jump(self, label: str) -> None:
        self.do(f"br label %{label}")

    def branch(self, condition: str, yes: str, no: str) -> None:
        self.do(f"br i1 {condition}, label %{yes}, label %{no}")
