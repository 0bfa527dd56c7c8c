"""Tile programs become machine code."""
