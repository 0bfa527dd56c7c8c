"""`tierup cache`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from tests.store.samples import entries, perceptron, saved, settings

import tierup
from tierup.adapt.memory import place_of
from tierup.cli.cache import clear_caches, explain_cache, list_caches, verify_caches
from tierup.store.learned import Store
from tierup.store.place import FILE
from tierup.store.plans import Plans, cache_parts
from tierup.store.rows import Decision, Machine, Quarantine, Region, RegionProfile
from tierup.store.source import open_source


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tierup.Config:
    """A cache with one plan, its kernels, and two rows."""
    monkeypatch.delenv("TIERUP_FORCE_TIER")
    config = settings(tmp_path)
    assert tierup.load(saved(tmp_path, perceptron()), config=config).settle(timeout_s=120).tier == 1
    with Store(place_of(config)) as store:
        store.put([Decision("p", "m", "net", 2, "refused", "[too] slow"), Quarantine("k" * 64, "m", "wrong")])
    return config


def printed(show: object, *arguments: object) -> str:
    text = io.StringIO()
    show(*arguments, Console(file=text, width=200))  # type: ignore[operator]
    return text.getvalue()


def test_ls_lists_kernels_plans_and_what_was_learned(config: tierup.Config, tmp_path: Path) -> None:
    text = printed(list_caches, config, tmp_path / "ls.json")
    assert "plans: 1" in text
    assert "net, tier 2: refused" in text
    assert "[too] slow" in text
    assert "quarantine kkkkkkkkkkkk: wrong" in text
    record = json.loads((tmp_path / "ls.json").read_text())
    assert record["kernels"] == record["plans"][0]["kernels"] > 0
    assert record["learned"]["decision"] == 1


def test_profiles_of_regions_are_shown(config: tierup.Config, tmp_path: Path) -> None:
    source = open_source(tmp_path / "model.onnx")
    assert source is not None
    entry = Plans(config.cache_path, config.threads).find(source, cache_parts("f32"))
    assert entry is not None
    region = entry.record.plan.kernels[0].region
    with Store(place_of(config)) as store:
        store.put(
            [
                Machine("m", "a [fast] processor", "x86_64", 2),
                Region(region, "kernel of [mine]", 10),
                RegionProfile("g", "m", region, "1×40", 7, (1.0, 2.0, 3.0)),
                RegionProfile("h", "m", "f" * 64, "1×41", 7, (4000.0,)),
            ]
        )
    text = printed(list_caches, config, None)
    assert "a [fast] processor, x86_64, 2 cores" in text
    assert "2 execution profiles of regions" in text
    assert "kernel of [mine]" in text
    assert text.index("4 ms") < text.index("2 µs")  # what takes most time comes first
    text = printed(explain_cache, tmp_path / "model.onnx", config, None)
    assert "1 execution profiles of regions" in text
    assert region[:12] in text
    assert "ffffffffffff" not in text


def test_explain_names_the_part_that_differs(config: tierup.Config, tmp_path: Path) -> None:
    record = tmp_path / "why.json"
    assert "it is stored" in printed(explain_cache, tmp_path / "model.onnx", config, record)
    assert json.loads(record.read_text()) == {"stored": True, "differs": {}}
    other = saved(tmp_path, perceptron(5), "other.onnx")
    text = printed(explain_cache, other, config, record)
    assert "differs" in text
    assert [line.split()[0] for line in text.splitlines()[1:]] == ["model"]
    assert list(json.loads(record.read_text())["differs"]) == ["model"]
    assert "empty" in printed(explain_cache, other, settings(tmp_path / "nowhere"), record)
    assert not json.loads(record.read_text())["stored"]
    tierup.load(other, config=settings(tmp_path, force_tier=1))
    assert "only a forced tier starts with them" in printed(explain_cache, other, config, None)


def test_verify_removes_what_is_damaged(config: tierup.Config, tmp_path: Path) -> None:
    assert "0 kernels, 0 plans, 0 rows" in printed(verify_caches, config, None)
    (entry,) = entries(tmp_path)
    entry.write_bytes(entry.read_bytes()[:-1])
    (tmp_path / "data" / FILE).write_bytes(b"no database" * 1000)
    text = printed(verify_caches, config, tmp_path / "damage.json")
    assert json.loads((tmp_path / "damage.json").read_text())["plans"] == 1
    assert "0 kernels, 1 plans, 0 rows; stores set aside: 1" in text
    assert entries(tmp_path) == []


def test_clear_removes_everything(config: tierup.Config, tmp_path: Path) -> None:
    text = printed(clear_caches, config)
    assert "1 plans, 2 rows" in text
    assert list((tmp_path / "cache" / "plans").iterdir()) == []
    assert list((tmp_path / "cache" / "objects").iterdir()) == []


def test_a_store_that_cannot_be_opened_is_said(config: tierup.Config, tmp_path: Path) -> None:
    (tmp_path / "data").chmod(0o777)
    assert "chmod 700" in printed(list_caches, config, None)
    assert "chmod 700" in printed(verify_caches, config, None)
    assert not verify_caches(config, None, Console(file=io.StringIO()))
    assert "chmod 700" in printed(clear_caches, config)
    assert not clear_caches(config, Console(file=io.StringIO()))
    (tmp_path / "data").chmod(0o700)
