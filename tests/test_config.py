"""Config: arguments, environment, defaults, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tierup
from tierup.config import Config


def test_defaults_are_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TIERUP_ADAPT", "TIERUP_FORCE_TIER"):  # the test run stays on tier 0
        monkeypatch.delenv(name)
    config = Config()
    assert config.threads is not None
    assert config.threads >= 1
    assert (config.precision, config.adapt, config.force_tier) == ("f32", True, None)
    assert config.cache_dir is not None
    assert config.cache_dir.name == "tierup"


def test_folders_follow_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "d"))
    config = Config()
    assert (config.cache_dir, config.data_dir) == (tmp_path / "c" / "tierup", tmp_path / "d" / "tierup")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("threads", "3", 3),
        ("adapt", "0", False),
        ("adapt", "True", True),
        ("cache_dir", "/some/place", Path("/some/place")),
        ("force_tier", "2", 2),
        ("store_url", "sqlite:///x", "sqlite:///x"),
    ],
)
def test_every_field_is_also_a_variable(monkeypatch: pytest.MonkeyPatch, name: str, text: str, expected: Any) -> None:
    monkeypatch.setenv(f"TIERUP_{name.upper()}", text)
    assert getattr(Config(), name) == expected


def test_an_argument_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERUP_THREADS", "3")
    assert Config(threads=2).threads == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threads", 0),
        ("threads", 10**9),
        ("threads", True),
        ("threads", 1.5),
        ("threads", "two"),
        ("precision", "f8"),
        ("precision", "f16"),
        ("adapt", "maybe"),
        ("adapt", 3),
        ("cache_dir", 5),
        ("cache_dir", "a\0b"),
        ("force_tier", 3),
        ("store_url", 5),
    ],
)
def test_bad_settings_name_the_field(name: str, value: Any) -> None:
    with pytest.raises(tierup.ConfigError, match=name):
        Config(**{name: value})


def test_config_is_frozen_and_hashable() -> None:
    config = Config(threads=1)
    with pytest.raises(AttributeError):
        config.threads = 2  # type: ignore[misc]
    assert {config: 1}[Config(threads=1)] == 1
    assert config != Config(threads=2)
    assert repr(config).startswith("Config(threads=1, precision='f32', adapt=")
