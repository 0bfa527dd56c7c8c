"""Traffic as a user writes it: drawn from ranges, or read from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tierup.bench.traffic import MAX_SIZE, parse_traffic
from tierup.errors import InputError


def test_sizes_are_drawn_from_their_ranges_and_the_same_for_a_seed() -> None:
    traffic = parse_traffic("ids=1,8..11")
    calls = traffic.shapes(400, seed=3, default=2000)
    assert len(calls) == 400
    assert {shapes["ids"] for shapes in calls} == {(1, 8), (1, 9), (1, 10), (1, 11)}
    assert calls == traffic.shapes(400, seed=3, default=2000)
    assert calls != traffic.shapes(400, seed=4, default=2000)


def test_several_inputs_and_odd_names() -> None:
    traffic = parse_traffic("a:0=2,3..3; b=c=1")
    assert traffic.shapes(1, 0, 1) == [{"a:0": (2, 3), "b=c": (1,)}]


def test_the_default_number_of_calls() -> None:
    assert len(parse_traffic("x=1..2").shapes(None, 0, 17)) == 17


@pytest.mark.parametrize("text", ["", ";", "ids", "ids=", "=1", "ids=1,a", "ids=1..", "ids=1...3", "x=1,,2"])
def test_what_is_no_traffic_is_named(text: str) -> None:
    with pytest.raises(InputError, match="is no traffic"):
        parse_traffic(text)


@pytest.mark.parametrize("size", ["9..8", "-1", f"1..{MAX_SIZE + 1}"])
def test_ranges_are_bounded(size: str) -> None:
    with pytest.raises(InputError, match="is no range of sizes"):
        parse_traffic(f"ids=1,{size}")


def test_recorded_shapes_are_played_in_order_and_again(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"ids": [1, 5], "mask": [1, 5]}\n\n{"ids": [2, 7]}\n')
    traffic = parse_traffic(str(path))
    first, second = {"ids": (1, 5), "mask": (1, 5)}, {"ids": (2, 7)}
    assert traffic.shapes(None, 0, 2000) == [first, second]
    assert traffic.shapes(3, 0, 2000) == [first, second, first]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has 0 calls"),
        ("[1, 2]", "line 1"),
        ('{"ids": [1, 2]}\n{"ids": [1, -2]}', "line 2"),
        ('{"ids": [1, 1e99]}', "line 1"),
        ('{"ids": 3}', "line 1"),
        ("nonsense", "line 1"),
    ],
)
def test_a_file_that_is_no_traffic_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(InputError, match=message):
        parse_traffic(str(tmp_path / "t.jsonl"))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        parse_traffic(str(tmp_path / "none.jsonl"))
