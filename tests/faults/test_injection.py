"""Each fault twice, under load; `make faults` injects each a hundred times and prints the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.injection import KERNELS, STORES, Change, inject_kernels, inject_kills, inject_store, table
from tierup.profile.identity import identify

pytestmark = pytest.mark.skipif(identify().architecture != "x86_64", reason="the injected code is x86's")


@pytest.mark.parametrize("change", KERNELS, ids=lambda change: change.__name__)
def test_kernels(change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = inject_kernels(change, 2, tmp_path, monkeypatch)
    assert outcome.held, table([outcome])


def test_killed_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = inject_kills(2, tmp_path, monkeypatch)
    assert outcome.held, table([outcome])


@pytest.mark.parametrize("name", STORES)
def test_stores(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = inject_store(name, 1, tmp_path, monkeypatch)
    assert outcome.held, table([outcome])
