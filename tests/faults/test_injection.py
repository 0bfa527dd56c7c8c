"""Each fault a few times, under load; `make faults` injects each hundreds of times and prints the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.faults import BUILDING
from tests.faults.injection import run_fault, table
from tests.faults.service import SERVING
from tierup.profile.identity import identify

pytestmark = pytest.mark.skipif(identify().architecture != "x86_64", reason="the injected code is x86's")


@pytest.mark.parametrize("name", [*BUILDING, *SERVING])
def test_nothing_is_lost_or_wrong(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run_fault((BUILDING | SERVING)[name], 2, tmp_path, monkeypatch)
    assert outcome.held, table([outcome])
