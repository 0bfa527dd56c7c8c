"""What a runner remembers of its calls."""

from __future__ import annotations

import numpy as np
import pytest
from tests.security.models import model, node, value

import tierup
from tierup.session import Model


def exponent() -> bytes:
    return model([node("Exp", ["x"], ["y"])], [value("x", ["n"])], [value("y", ["n"])]).SerializeToString()


def test_signatures_are_counted() -> None:
    loaded = tierup.load(exponent())
    for size in (1, 2, 2, 3):
        loaded(x=np.ones(size, np.float32))
    with pytest.raises(tierup.InputError):
        loaded(x=np.ones((2, 2), np.float32))
    assert loaded.signatures() == [(((1,),), 1), (((2,),), 2), (((3,),), 1)]


def test_a_notice_comes_once_and_cannot_spoil_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    noticed: list[int] = []
    lost: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda hook: lost.append(hook.exc_value))

    class Listening(Model):
        def notice_calls(self) -> None:
            noticed.append(self.calls)
            raise RuntimeError("nobody hears this")

    loaded = Listening(exponent(), tierup.Config())
    loaded.notice_after(3)
    for _ in range(5):
        assert loaded(x=np.zeros(1, np.float32))["y"] == 1
    assert noticed == [3]
    assert len(lost) == 1
    loaded.notice_after(1)
    loaded.notice_after(0)
    loaded(x=np.zeros(1, np.float32))
    assert noticed == [3]


def test_kernels_are_timed_when_asked() -> None:
    loaded = tierup.load(exponent(), config=tierup.Config(force_tier=1))
    assert loaded.program is not None
    loaded(x=np.ones(3, np.float32))
    assert loaded.program.kernel_times() == []
    loaded.program.time_kernels(True)
    for _ in range(2):
        loaded(x=np.ones(3, np.float32))
    ((function, _, calls, nanoseconds),) = loaded.program.kernel_times()
    assert (function, calls) == (0, 2)
    assert nanoseconds > 0
    loaded.program.time_kernels(False)
    loaded(x=np.ones(3, np.float32))
    assert loaded.program.kernel_times()[0][2] == 2
