"""Entries of the plan cache that are damaged, foreign or hostile: each is a miss, and the answer is the same."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import tierup
from tests.store.samples import entries, floats, perceptron, positions, saved, settings
from tierup.store.records import INLINE, EntryRecord, TensorRecord, WeightRecord

MAGIC = b"tierup plan 1\n"
X = floats(3, 40)


@pytest.fixture(autouse=True)
def _no_forced_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIERUP_FORCE_TIER")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A folder with a model and its entry, and the answer."""
    folder = tmp_path_factory.mktemp("made")
    path = saved(folder, perceptron())
    answer = tierup.load(path, config=settings(folder, force_tier=1))(x=X)["y"]
    return folder, answer.tobytes()


@pytest.fixture
def folder(made: tuple[Path, bytes], tmp_path: Path) -> Path:
    """A copy to damage; the model keeps its content, and so its key."""
    shutil.copytree(made[0], tmp_path / "copy", symlinks=True)
    return tmp_path / "copy"


def check_miss(folder: Path, expected: bytes) -> None:
    """The entry is of no use, the model answers, and leaves an entry that is."""
    again = tierup.load(folder / "model.onnx", config=settings(folder, force_tier=1))
    cache = again.report().to_dict()["cache"]
    assert (cache["plan_hits"], cache["plan_misses"]) == (0, 1)
    assert again(x=X)["y"].tobytes() == expected


def check_hit(folder: Path) -> None:
    again = tierup.load(folder / "model.onnx", config=settings(folder, force_tier=1))
    assert again.report().to_dict()["cache"]["plan_hits"] == 1


def test_the_copy_is_a_hit(folder: Path) -> None:
    """Otherwise none of the tests here would test anything."""
    check_hit(folder)


@pytest.mark.parametrize("place", [0, 5, 14, 20, 45, 46, 47, 100, 1000, -1000, -1])
def test_a_flipped_bit(place: int, folder: Path, made: tuple[Path, bytes]) -> None:
    (entry,) = entries(folder)
    content = bytearray(entry.read_bytes())
    content[place] ^= 1
    entry.write_bytes(content)
    check_miss(folder, made[1])
    check_hit(folder)


@pytest.mark.parametrize("length", [0, 1, 13, 14, 45, 46, 47, 500, -1])
def test_a_file_that_is_cut_off(length: int, folder: Path, made: tuple[Path, bytes]) -> None:
    (entry,) = entries(folder)
    entry.write_bytes(entry.read_bytes()[:length])
    check_miss(folder, made[1])
    check_hit(folder)


def test_a_file_that_goes_on(folder: Path, made: tuple[Path, bytes]) -> None:
    (entry,) = entries(folder)
    entry.write_bytes(entry.read_bytes() + b"\0")
    check_miss(folder, made[1])


def test_an_entry_of_another_model(folder: Path, tmp_path: Path, made: tuple[Path, bytes]) -> None:
    """Whole, and made by us, but for other weights."""
    other = tmp_path / "other"
    other.mkdir()
    tierup.load(saved(other, perceptron(1)), config=settings(other, force_tier=1))
    shutil.copy(entries(other)[0], entries(folder)[0])
    check_miss(folder, made[1])


def test_a_folder_that_others_can_write_to(folder: Path, made: tuple[Path, bytes]) -> None:
    os.chmod(folder / "cache" / "plans", 0o777)
    check_miss(folder, made[1])


def test_a_file_that_others_can_write_to(folder: Path, made: tuple[Path, bytes]) -> None:
    os.chmod(entries(folder)[0], 0o622)
    check_miss(folder, made[1])


def test_a_link_in_place_of_an_entry(folder: Path, made: tuple[Path, bytes]) -> None:
    (entry,) = entries(folder)
    entry.rename(folder / "elsewhere")
    entry.symlink_to(folder / "elsewhere")
    check_miss(folder, made[1])


def test_a_pipe_in_place_of_an_entry(folder: Path, made: tuple[Path, bytes]) -> None:
    (entry,) = entries(folder)
    entry.unlink()
    os.mkfifo(entry)
    check_miss(folder, made[1])


def rewrite(entry: Path, change: Callable[[Any], Any]) -> None:
    """An entry with a digest that fits, and whatever `change` made of its record."""
    record = msgspec.msgpack.decode(entry.read_bytes()[len(MAGIC) + 32 :], type=EntryRecord)
    payload = msgspec.msgpack.encode(change(record))
    entry.write_bytes(MAGIC + sha256(payload).digest() + payload)


def test_rewriting_an_entry_changes_nothing(folder: Path) -> None:
    rewrite(entries(folder)[0], lambda record: record)
    check_hit(folder)


def replaced(**fields: Any) -> Callable[[EntryRecord], EntryRecord]:
    return lambda record: msgspec.structs.replace(record, **fields)


def plan(**fields: Any) -> Callable[[EntryRecord], EntryRecord]:
    return lambda record: msgspec.structs.replace(record, plan=msgspec.structs.replace(record.plan, **fields))


def function(**fields: Any) -> Callable[[EntryRecord], EntryRecord]:
    def change(record: EntryRecord) -> EntryRecord:
        first = msgspec.structs.replace(record.plan.functions[0], **fields)
        return plan(functions=(first, *record.plan.functions[1:]))(record)

    return change


def about(**fields: Any) -> Callable[[EntryRecord], EntryRecord]:
    return lambda record: msgspec.structs.replace(record, about=msgspec.structs.replace(record.about, **fields))


def weights(**fields: Any) -> Callable[[EntryRecord], EntryRecord]:
    """The same change to every weight of the model file that is not in the record itself."""

    def changed(weight: WeightRecord) -> WeightRecord:
        return weight if weight.where == INLINE else msgspec.structs.replace(weight, **fields)

    return lambda record: msgspec.structs.replace(
        record, weights={digest: changed(weight) for digest, weight in record.weights.items()}
    )


def value(**fields: Any) -> Callable[[EntryRecord], EntryRecord]:
    def change(record: EntryRecord) -> EntryRecord:
        return about(inputs=(msgspec.structs.replace(record.about.inputs[0], **fields),))(record)

    return change


def nested(depth: int) -> msgspec.Raw:
    """A type inside types, deeper than any stack."""
    pair = msgspec.msgpack.encode(["sequence", 0])[:-1]
    return msgspec.Raw(pair * depth + msgspec.msgpack.encode(["tensor", 1, None]))


HOSTILE: dict[str, Callable[[EntryRecord], Any]] = {
    "other parts": replaced(parts={"model": "x"}),
    "no weights": replaced(weights={}),
    "offset behind the end": weights(offset=1 << 40),
    "offset at the limit": weights(offset=1 << 62),
    "negative offset": weights(offset=-(1 << 20)),
    "negative shape": weights(stored=(-1, -1)),
    "no such file": weights(where=9),
    "no arrays file": weights(where=-2),
    "huge shape": weights(stored=(1 << 31, 1 << 31)),
    "huge empty shape": weights(stored=(0, 1 << 62)),
    "string weights": weights(dtype=8),
    "unknown dtype": weights(dtype=99),
    "axes twice": weights(axes=(0, 0)),
    "axes outside": weights(axes=(5,)),
    "one axis": weights(stored=(64,)),
    "no functions": lambda record: {**msgspec.to_builtins(record), "plan": [[]]},
    "many registers": function(n_values=1 << 40),
    "many dims": function(n_dims=1 << 40),
    "a step of no kind": function(steps=((99, 0),)),
    "a step that is cut off": function(steps=((4, 0, 3, 1),)),
    "a jump away": function(steps=((8, 1 << 30),)),
    "an empty step": function(steps=((),)),
    "outputs outside": function(outputs=(1 << 20,)),
    "too few inputs": function(inputs=()),
    "no kernels": plan(kernels=()),
    "no code": lambda record: plan(kernels=tuple((k.key, b"") for k in record.plan.kernels))(record),
    "numbers beyond 64 bits": function(n_values=(1 << 64) - 1),
    "wide panels": lambda record: plan(constants=tuple((c[0], 1 << 62) for c in record.plan.constants))(record),
    "no panels": lambda record: plan(constants=tuple((c[0], 0) for c in record.plan.constants))(record),
    "an unknown packing": lambda record: plan(constants=tuple((c[0], "a", 3) for c in record.plan.constants))(record),
    "a packing without digest": lambda record: plan(constants=tuple((7,) for _ in record.plan.constants))(record),
    "an input too many": lambda record: about(inputs=record.about.inputs * 2)(record),
    "an unknown input type": value(type=TensorRecord(77, None)),
    "a negative size": value(shape=(-5, 40)),
    "a type without end": lambda record: {
        **msgspec.to_builtins(record),
        "about": ["n", {}, 0, [["x", nested(5000), None, "t", True]], []],
    },
    "external data": replaced(external=(("../../etc/passwd", 1, "0" * 64),)),
    "arrays elsewhere": replaced(arrays=("../secret", 1, "0" * 64)),
    "another record": lambda record: {"weights": "none"},
    "a list": lambda record: [1, 2, 3],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_numbers_that_no_plan_has(name: str, folder: Path, made: tuple[Path, bytes]) -> None:
    rewrite(entries(folder)[0], HOSTILE[name])
    check_miss(folder, made[1])


def test_external_data_outside_the_folder(folder: Path, made: tuple[Path, bytes]) -> None:
    """It exists, and its fingerprint is right; it is not looked at."""
    secret = folder.parent / "secret"
    secret.write_bytes(b"")
    empty = sha256((0).to_bytes(8, "little")).hexdigest()
    rewrite(entries(folder)[0], replaced(external=(("../secret", 0, empty),)))
    check_miss(folder, made[1])


@pytest.mark.parametrize(
    "text", ["graph {", "graph {\nreturn\n}", "x" * 100, "graph {\n%0 : f32[*] = onnx.Nothing@1()\nreturn\n}"]
)
def test_a_call_out_that_is_none(text: str, tmp_path: Path) -> None:
    """It is parsed when it is first called, and that call says so."""
    path = saved(tmp_path, positions())
    tierup.load(path, config=settings(tmp_path, force_tier=1))

    def change(record: EntryRecord) -> EntryRecord:
        callouts = tuple(
            msgspec.structs.replace(callout, text=text) if callout.text else callout for callout in record.plan.callouts
        )
        return plan(callouts=callouts)(record)

    rewrite(entries(tmp_path)[0], change)
    loaded = tierup.load(path, config=settings(tmp_path, force_tier=1))
    with pytest.raises(tierup.StoreError, match="call-out"):
        loaded(x=np.ones((1, 3, 4), np.float32))
