"""`tierup bench`, quickly, on a model that takes no time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from onnx import TensorProto, numpy_helper
from tests.security.models import model, node, value
from typer.testing import CliRunner

from tierup.bench import contenders
from tierup.bench import process as process_module
from tierup.bench.record import Record
from tierup.cli import app
from tierup.errors import TierupError

QUICK = ("--rounds", "2", "--seconds", "0.002", "--starts", "1", "--settle", "5")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "m.onnx"
    table = numpy_helper.from_array(np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32), "table")
    nodes = [node("Gather", ["table", "ids"], ["rows"], axis=0), node("Softmax", ["rows"], ["y"])]
    proto = model(
        nodes, [value("ids", ["batch", "seq"], TensorProto.INT64)], [value("y", ["batch", "seq", 4])], [table]
    )
    file.write_bytes(proto.SerializeToString())
    return file


def bench(path: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    """What is printed, and what is written as JSON; errors are raised."""
    file = path.with_suffix(".json")
    done = CliRunner().invoke(
        app, ["bench", str(path), *QUICK, "--json", str(file), *arguments], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    record = json.loads(file.read_text())
    msgspec.convert(record, Record)  # the schema: every field of every row has its type
    return done.output, {**record, "entries": {row["contender"]: row for row in record["entries"]}}


def test_rounds_beside_onnx_runtime(path: Path, tmp_path: Path) -> None:
    output, record = bench(path, "--against", "onnxruntime", "--shape", "ids=2,3", "--plot", str(tmp_path / "p.svg"))
    assert record["kind"] == "rounds"
    assert record["inputs"] == {"ids": "int64[2, 3]"}
    assert list(record["entries"]) == ["tierup", "onnxruntime"]
    for row in record["entries"].values():
        figures = row["figures"]
        assert row["status"] == "measured"
        assert len(figures["series"]) == 2
        assert figures["calls"] >= 6  # at least three a round
        assert 0 < figures["call_us"]["low"] <= figures["call_us"]["median"] <= figures["call_us"]["high"]
        assert figures["p99_us"] >= figures["call_us"]["median"]
        stages = figures["first_answer"]
        parts = sum(stages[name] for name in ("start_ms", "import_ms", "load_ms", "call_ms"))
        assert stages["total_ms"]["median"] == pytest.approx(parts)
        assert figures["memory"]["import_bytes"] > 1 << 20
        assert figures["memory"]["peak_bytes"] >= 0
        assert figures["answers"]["agrees"] is True
        assert figures["answers"]["reference"] == "onnxruntime"
    assert record["entries"]["tierup"]["figures"]["first_answer"]["cold_ms"] > 0
    assert record["entries"]["tierup"]["figures"]["details"]["counters"]["calls"] > 0
    assert record["ratio"]["peer"] == "onnxruntime"
    assert "best peer ÷ Tierup" in output
    assert ElementTree.parse(tmp_path / "p.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize("cache", ["warm", "empty"])
def test_traffic(path: Path, cache: str) -> None:
    traffic = ("--traffic", "ids=1,2..9", "--calls", "50", "--cache", cache)
    output, record = bench(path, "--against", "onnxruntime", *traffic)
    assert record["kind"] == "traffic"
    assert record["cache"] == cache
    for row in record["entries"].values():
        assert row["figures"]["calls"] == 100  # two runs
        assert row["figures"]["answers"]["agrees"] is True
        assert row["figures"]["first_answer"]["total_ms"]["median"] > 0
    assert "p99.9" in output


@pytest.mark.parametrize(("cache", "found"), [("warm", [False, True, True]), ("empty", [False, False])])
def test_traffic_finds_on_disk_what_it_says(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str, found: list[bool]
) -> None:
    """Whether the processes of two runs found a plan when they began, in their order, the one that fills first."""
    body = (
        "from pathlib import Path\n"
        "filled = any(Path(job['cache']).glob('**/plans/**/*'))\n"
        f"with open({str(tmp_path / 'found')!r}, 'a') as log: log.write(f'{{filled}}\\n')"
    )
    monkeypatch.setattr(process_module, "WORKER", script(tmp_path, body))
    monkeypatch.setenv("TIERUP_FORCE_TIER", "1")
    bench(path, "--against", "", "--traffic", "ids=1,2..9", "--calls", "5", "--cache", cache)
    assert (tmp_path / "found").read_text().split() == [str(one) for one in found]


def test_recorded_traffic(path: Path, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"ids": [1, 4]}\n{"ids": [2, 5]}\n{"ids": [1, 4]}\n')
    _, record = bench(path, "--against", "", "--traffic", str(tmp_path / "t.jsonl"))
    assert record["entries"]["tierup"]["figures"]["calls"] == 6
    assert record["why_no_ratio"] == "no peer was measured"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--traffic", "ids"], "is no traffic"),
        (["--traffic", "ids=1,9..2"], "is no range of sizes"),
        (["--traffic", "none.jsonl"], "cannot be read"),
        (["--traffic", "z=1"], "there is no input 'z'"),
        (["--against", "onnxruntime,tensorrt"], "there is no contender 'tensorrt'"),
        (["--shape", "ids=1,2,3"], "Its inputs were made up: give them with --input or --shape"),
    ],
)
def test_bench_says_what_is_wrong(path: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(TierupError, match=message):
        bench(path, *arguments)


def test_a_peer_that_is_not_installed_is_listed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "is_installed", lambda package: package == "tierup")
    output, record = bench(path, "--against", "openvino,torch-eager")
    assert "openvino: missing: the package 'openvino' is not installed" in output
    assert record["entries"]["openvino"]["status"] == "missing"
    assert record["entries"]["tierup"]["status"] == "measured"


def test_torch_without_a_source_is_listed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "is_installed", lambda package: True)
    output, _ = bench(path, "--against", "torch-eager")
    assert "--source FILE.py:NAME" in output


def script(folder: Path, body: str) -> Path:
    """A worker that is the real one, after this."""
    real = process_module.WORKER
    file = folder / "worker.py"
    file.write_text(
        f"import json, os, runpy, sys\njob = json.loads(sys.argv[1])\n"
        f"real = runpy.run_path({str(real)!r})\n{body}\nreal['main']()\n"
    )
    return file


def test_a_peer_that_crashes_takes_nobody_with_it(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = (
        "def crash(*a, **k):\n    os.write(2, b'out of luck\\n'); os.abort()\n"
        "if job['contender'] == 'onnxruntime': real['Server'].round = crash"
    )
    monkeypatch.setattr(process_module, "WORKER", script(tmp_path, body))
    monkeypatch.setenv("TIERUP_THREADS", "1")  # one setting: the crash comes in a round, not while settings are tried
    output, record = bench(path, "--against", "onnxruntime")
    assert record["entries"]["onnxruntime"]["status"] == "failed"
    assert "it was ended by SIGABRT: out of luck" in output
    assert record["entries"]["tierup"]["status"] == "measured"
    assert "no ratio: no peer was measured" in output


def test_settings_that_crash_are_not_chosen(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "if job['contender'] == 'onnxruntime' and job['settings']['threads'] == 2: os.abort()"
    monkeypatch.setattr(process_module, "WORKER", script(tmp_path, body))
    monkeypatch.setenv("TIERUP_THREADS", "2")
    _, record = bench(path, "--against", "onnxruntime")
    figures = record["entries"]["onnxruntime"]["figures"]
    assert figures["settings"] == {"threads": 1}
    assert "SIGABRT" in figures["trials"][0]["why_not"]


def test_answers_that_differ_are_shown(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = (
        "import numpy\n"
        "if job['contender'] == 'tierup':\n"
        "    real['Tierup'].items = lambda self, answer: [numpy.flip(item, -1) for item in answer.values()]"
    )
    monkeypatch.setattr(process_module, "WORKER", script(tmp_path, body))
    output, record = bench(path, "--against", "onnxruntime")
    assert record["entries"]["tierup"]["figures"]["answers"]["agrees"] is False
    assert "tierup: its answers differ from those of onnxruntime: relative RMS error" in output
    assert "no ratio: Tierup's answers differ" in output


def test_tierup_that_cannot_be_measured_is_an_error(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "WORKER", script(tmp_path, "if job['contender'] == 'tierup': os.abort()"))
    with pytest.raises(TierupError, match="Tierup could not be measured: it was ended by SIGABRT"):
        bench(path, "--against", "")


def test_help_shows_an_example() -> None:
    done = CliRunner().invoke(app, ["bench", "--help"])
    assert done.exit_code == 0
    assert "Example: tierup bench" in done.output


def test_every_call_takes_the_next_set(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inputs that calls saw, written down by the contender."""
    body = (
        "seen = set()\n"
        "class Watched(real['Tierup']):\n"
        "    def load(self):\n"
        "        call = super().load()\n"
        "        def watched(feeds):\n"
        "            seen.add(feeds['ids'].tobytes())\n"
        "            return call(feeds)\n"
        "        return watched\n"
        "    def items(self, answer):\n"
        f"        open({str(tmp_path / 'seen')!r}, 'w').write(str(len(seen)))\n"
        "        return super().items(answer)\n"
        "real['LIBRARIES']['tierup'] = Watched"
    )
    monkeypatch.setattr(process_module, "WORKER", script(tmp_path, body))
    bench(path, "--against", "", "--shape", "ids=1,8")
    assert int((tmp_path / "seen").read_text()) == 8
