"""Figures, never asserted: every contender in its own process, one active at a time, rounds interleaved."""
