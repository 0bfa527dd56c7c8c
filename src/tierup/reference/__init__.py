"""Tier 0: every op in NumPy. The first answers, and the oracle of every test and proof.

A reference function is `f(node, *inputs) -> array | tuple of arrays`. It reads `node.attrs`, `node.version` and, where
an op has optional outputs, `node.outputs`. Absent optional inputs are None; trailing ones may be left out. It computes
in the dtype of its float inputs, so that the same function serves as baseline (f32) and as oracle (everything widened
to f64). It never writes to its inputs and may return views of them. Bad data (an index outside its tensor) raises
ValueError or IndexError with a sentence; the caller adds the node's name. Ops with bodies also take
`run(graph, inputs) -> outputs` as a keyword.
"""
