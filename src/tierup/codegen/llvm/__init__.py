"""Tile programs -> LLVM IR as text -> object code. No IR passes run: the emitter decides unrolling and order."""
