"""Damaged files: truncated, random, mutated. Each is refused or loads whole; none crashes or hangs."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tierup
from tests.models.catalog import model_path
from tests.security.models import external, model, node

MUTATED = ("silero_vad", "tabular_mlp", "fbank_scan", "magika")


def loads_or_refuses(data: bytes) -> bool:
    try:
        tierup.load(data).close()
    except tierup.ModelError:
        return False
    return True


@pytest.mark.parametrize("data", [b"", b"\x89PNG\r\n", b"PK\x03\x04", b"\x7fELF", b"{}", b"\0" * 100, b"\xff" * 1000])
def test_other_files_are_no_models(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(tierup.ModelError):
        tierup.load(path)
    with pytest.raises(tierup.ModelError):
        tierup.load(data)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path, tmp_path / "none.onnx", tmp_path / "pipe", Path("/dev/zero"), "a\0b"):
        with pytest.raises(tierup.ModelError, match="model file"):
            tierup.load(place)


@pytest.mark.parametrize("thing", [None, 3, 3.5, [1], np.zeros(3), object()])
def test_things_that_are_no_models(thing: object) -> None:
    with pytest.raises(tierup.ModelError):
        tierup.load(thing)


@pytest.mark.models
@pytest.mark.parametrize("name", ["silero_vad", "tabular_mlp"])
def test_truncated_at_every_fiftieth(name: str, tmp_path: Path) -> None:
    data = model_path(name).read_bytes()
    for part in range(50):
        cut = tmp_path / "cut.onnx"
        cut.write_bytes(data[: len(data) * part // 50])
        with pytest.raises(tierup.ModelError):
            tierup.load(cut)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=4096))
def test_random_bytes(data: bytes) -> None:
    loads_or_refuses(data)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_mutated_protobuf(data: st.DataObject) -> None:
    """Single fields of a valid message changed: what a fuzzer of the wire format rarely reaches."""
    base = external("w.bin") if data.draw(st.booleans()) else model([node("Relu", ["x"], ["y"])])
    graph = base.graph
    name = data.draw(st.sampled_from(["", "x", "y", "w", "z", "\0", "n" * 300]))
    match data.draw(st.integers(0, 7)):
        case 0:
            graph.node[0].input[0] = name
        case 1:
            graph.node[0].output[0] = name
        case 2:
            graph.node[0].op_type = data.draw(
                st.sampled_from(["If", "Loop", "Scan", "Constant", "Cast", "Reshape", ""])
            )
        case 3:
            graph.input[0].type.tensor_type.elem_type = data.draw(st.integers(-5, 40))
        case 4:
            graph.input[0].type.tensor_type.shape.dim[0].dim_value = data.draw(st.integers(-(2**63), 2**63 - 1))
        case 5:
            base.opset_import[0].version = data.draw(st.integers(-(2**63), 2**63 - 1))
        case 6:
            graph.node[0].attribute.add(name=name, type=data.draw(st.integers(0, 14)), i=data.draw(st.integers(-9, 9)))
        case _:
            graph.output[0].name = name
    loads_or_refuses(base.SerializeToString())


FUZZ = """
import random, resource, sys
import tierup
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
name, seed, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
data = open(name, "rb").read()
rng = random.Random(seed)
refused = 0
for _ in range(rounds):
    mutant = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        at = rng.randrange(len(mutant)) if rng.random() < 0.3 else rng.randrange(min(len(mutant), 20_000))
        kind = rng.random()
        if kind < 0.6:
            mutant[at] = rng.randrange(256)
        elif kind < 0.8:
            del mutant[at : at + rng.randrange(1, 40)]
        else:
            mutant[at:at] = rng.randbytes(rng.randrange(1, 40))
    try:
        tierup.load(bytes(mutant)).close()
    except tierup.ModelError as error:
        assert str(error)
        refused += 1
print(refused)
"""


@pytest.mark.models
@pytest.mark.parametrize("name", MUTATED)
def test_mutated_models_in_a_process_with_limits(name: str) -> None:
    """6 GiB of address space and two minutes of CPU for 60 mutants; anything but a refusal or a load kills it."""
    command = [sys.executable, "-c", FUZZ, str(model_path(name)), str(random.Random(name).randrange(10**6)), "60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert 0 < int(done.stdout) <= 60


def test_a_refused_model_leaves_nothing_behind(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(20):
        path = tmp_path / "model.onnx"
        path.write_bytes(external("none.bin").SerializeToString())
        with pytest.raises(tierup.ModelError):
            tierup.load(path)
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 2
