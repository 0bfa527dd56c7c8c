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


def test_an_interrupt_in_a_notice_is_for_the_caller() -> None:
    class Listening(Model):
        def notice_calls(self) -> None:
            raise KeyboardInterrupt

    loaded = Listening(exponent(), tierup.Config())
    loaded.notice_after(1)
    with pytest.raises(KeyboardInterrupt):
        loaded(x=np.zeros(1, np.float32))
    assert loaded(x=np.zeros(1, np.float32))["y"] == 1


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


def test_a_rival_answers_its_share_of_the_calls() -> None:
    loaded, other = tierup.load(exponent()), tierup.load(exponent())
    assert other.program is not None
    loaded.set_rival(other.program, 0.25, seed=3)
    for _ in range(400):
        assert loaded(x=np.zeros(1, np.float32))["y"] == 1
    assert 60 < loaded.rival_calls < 140  # 4.6 standard deviations
    times = loaded.times()
    assert len(times) == 400  # every call is timed meanwhile
    assert sum(program == other.program.number for _, program, _ in times) == loaded.rival_calls
    assert {signature for signature, _, _ in times} == {((1,),)}
    assert all(taken > 0 for _, _, taken in times)
    loaded.set_rival(None)
    answered = loaded.rival_calls
    loaded(x=np.zeros(1, np.float32))
    assert loaded.rival_calls == answered
    with pytest.raises(ValueError, match="share"):
        loaded.set_rival(other.program, 1.5)


def test_a_rival_must_take_the_models_inputs() -> None:
    two = model([node("Add", ["x", "z"], ["y"])], [value("x", ["n"]), value("z", ["n"])], [value("y", ["n"])])
    other = tierup.load(two.SerializeToString())
    with pytest.raises(ValueError, match="2 inputs"):
        tierup.load(exponent()).set_rival(other.program)


def test_times_are_bounded_and_follow_the_program() -> None:
    loaded = tierup.load(exponent())
    assert loaded.times() == []
    for _ in range(2000):
        loaded(x=np.zeros(1000, np.float32))
    assert 0 < len(loaded.times()) <= 512
    assert loaded.timed >= len(loaded.times())
    assert loaded.program is not None
    assert {program for _, program, _ in loaded.times()} == {loaded.program.number}


@pytest.mark.parametrize("kind", ["dict", "list"])
def test_a_sample_comes_once_with_what_was_given_and_answered(kind: str) -> None:
    seen: list[tuple[dict[str, np.ndarray], dict[str, np.ndarray], int]] = []

    class Sampled(Model):
        def sample_call(self, feeds: dict[str, np.ndarray], outputs: dict[str, np.ndarray], program: int) -> None:
            seen.append((feeds, outputs, program))

    loaded = Sampled(exponent(), tierup.Config())
    loaded.sample_after(2)
    for number in range(4):
        feeds = {"x": [float(number)]}  # converted on the way
        if kind == "dict":
            loaded.run(feeds)
        else:
            loaded.call_list(["y"], feeds)
    ((given, answered, program),) = seen
    assert isinstance(given["x"], np.ndarray)
    np.testing.assert_allclose(answered["y"], np.exp(given["x"]), rtol=1e-6)
    assert given["x"] == 1
    assert loaded.program is not None
    assert program == loaded.program.number
