"""Graph in, equal graph out: constants folded, sizes known, nothing dead or twice, ops lowered to the core ops.

`rewrite.py` is the spine, `walk.py` the driver that every pass goes through, `rules/` the table of simplifications,
`decompose/` the table that lowers each op.
"""
