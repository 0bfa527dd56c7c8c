"""Regions become tile programs: the small virtual instruction set between graphs and machine code."""
