"""How tables get into a document: between the marks of their benchmark, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.__main__ import BENCHMARKS, filled

DOCUMENT = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def test_a_table_replaces_the_one_between_its_marks() -> None:
    document = "a\n<!-- x -->\nold\n<!-- end of x -->\nb\n<!-- y -->\nkept\n<!-- end of y -->\n"
    changed = filled(document, "x", "\n| new |\n")
    assert changed == document.replace("old\n", "| new |\n\n")
    assert filled(changed, "x", "| new |") == changed
    assert filled(document, "z", "lost") == document


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_document_has_a_place_for_every_benchmark(name: str) -> None:
    assert "| here |" in filled(DOCUMENT.read_text(), name, "| here |")
