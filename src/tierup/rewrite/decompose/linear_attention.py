"""LinearAttention: a Scan over time whose state is a matrix of key size by value size for each group of heads.

S ← g · S;  v ← r · (v - k · S);  S ← S + kᵀ · v;  y = q · S
"""

from __future__ import annotations

from msgspec import Struct

from tierup.ir.graph import Graph, Node, ValueId
from tierup.ir.types import Dim
from tierup.rewrite.decompose.core import Core, Declined, Decomposition
from tierup.rewrite.decompose.scans import scan
from tierup.rewrite.walk import Rewriter


class _Inputs(Struct, frozen=True):
    """What steps take, time first: queries (time, batch, groups, heads of a group, key size), keys (…, groups, key
    size, 1), values (…, groups, 1, value size), and where they are given the state's decay and the rates of writing."""

    queries: ValueId
    keys: ValueId
    values: ValueId
    gates: ValueId | None
    rates: ValueId | None

    @property
    def scanned(self) -> list[ValueId]:
        return [value for value in (self.queries, self.keys, self.values, self.gates, self.rates) if value is not None]


def _by_group(b: Core, x: ValueId, groups: int, *last: Dim) -> ValueId:
    """(batch, time, channels) as (time, batch, groups, *last)."""
    x = b.wide(x)
    batch, time, _ = b.shape(x)
    rest = range(2, 3 + len(last))
    return b.transpose(b.reshape(x, (batch, time, groups, *last)), (1, 0, *rest))


def _size(b: Core, x: ValueId, parts: int) -> int:
    width = b.shape(x)[2] if b.rank(x) == 3 else None
    if not isinstance(width, int):
        raise Declined("how many channels a head has is known only in the call")
    return width // parts


def _inputs(b: Core, n: Node) -> _Inputs:
    heads, groups = n.attrs["q_num_heads"], n.attrs["kv_num_heads"]
    q, k, v = (b.input(n, index) for index in range(3))
    key, value = _size(b, k, groups), _size(b, v, groups)
    decay, beta = b.given(n, 4), b.given(n, 5)
    gates = None if decay is None else b.exp(_by_group(b, decay, groups, _size(b, decay, groups), 1))
    rates = None
    if beta is not None:
        rates = _by_group(b, beta, _size(b, beta, 1), 1, 1)
    return _Inputs(
        _by_group(b, q, groups, heads // groups, key),
        _by_group(b, k, groups, key, 1),
        _by_group(b, v, groups, 1, value),
        gates,
        rates,
    )


def _body(b: Core, given: _Inputs, first: ValueId) -> Graph:
    """The state and one step's inputs in, the new state and (batch, groups, heads of a group, value size) out."""
    out = Rewriter(b.out.weights, b.out.source)
    c = Core(out)
    state = out.open_input(b.dtype(first), b.shape(first))
    queries, keys, values, *rest = (out.open_input(b.dtype(x), b.shape(x)[1:]) for x in given.scanned)
    if given.gates is not None:
        state = c.mul(state, rest.pop(0))
    if given.rates is not None:
        read = c.reduce("sum", c.mul(keys, state), (2,))
        values = c.mul(rest.pop(0), c.sub(values, read))
    state = c.add(state, c.mul(keys, values))
    return out.finish([state, c.matmul(queries, state)])


def _linear_attention(b: Core, n: Node) -> list[ValueId]:
    given = _inputs(b, n)
    heads, past = n.attrs["q_num_heads"], b.given(n, 3)
    time, batch, groups, key, _ = b.shape(given.keys)
    value = b.shape(given.values)[-1]
    shape = (batch, groups, key, value)
    work = b.dtype(given.queries)
    first = b.broadcast(b.number(0, work), shape) if past is None else b.cast(b.wide(past), work)
    last, y = scan(b, _body(b, given, first), [first], given.scanned)
    assert isinstance(key, int)
    scale = n.attrs.get("scale") or key**-0.5
    whole = b.transpose(b.reshape(y, (time, batch, groups, heads // n.attrs["kv_num_heads"], value)), (1, 0, 2, 3, 4))
    joined = b.reshape(whole, (batch, time, b.dims.mul(value, heads)))
    dtype = b.dtype(b.input(n))
    kept = dtype if past is None else b.dtype(past)
    return [b.cast(b.mul(joined, b.like(scale, joined)), dtype), b.cast(b.reshape(last, shape), kept)]


LINEAR_ATTENTION: dict[str, Decomposition] = {"onnx.LinearAttention": _linear_attention}
