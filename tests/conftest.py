"""Golden texts: `golden(name, text)` compares with tests/golden/<name>.txt; `--update-golden` writes it instead."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# Tests neither read nor write what the user's own models have learned, and start no background work by themselves.
_FOLDERS = tempfile.TemporaryDirectory(prefix="tierup-tests-")  # removed when the test process ends
for _variable in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
    os.environ[_variable] = str(Path(_FOLDERS.name) / _variable)
os.environ["TIERUP_FORCE_TIER"] = "0"  # those that want another tier ask for it, or remove this
os.environ["TIERUP_ADAPT"] = "0"

# The same examples in every run, so that a failure is a change's, not the day's; TIERUP_TESTS_RANDOM=1 draws new ones.
settings.register_profile("fixed", derandomize=True)
settings.register_profile("random", derandomize=False)
settings.load_profile("random" if os.environ.get("TIERUP_TESTS_RANDOM") else "fixed")

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/*.txt with what came out")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with the one that is kept under its name."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path} is missing; run pytest with --update-golden and look at what it wrote"
        assert text == path.read_text(encoding="utf-8")

    return compare
