"""The intermediate representation: types, graphs, the op table, verifier and text."""
