"""`tierup explain` on small models: every region, its figures, its code, and the reasons."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.explain.models import positions
from tests.profile.fakes import fake_machine
from tests.runtime.test_facts import chain
from tests.security.models import model, node, value
from typer.testing import CliRunner

from tierup import _native
from tierup.adapt.planning import make_plan
from tierup.cli import app
from tierup.errors import InputError
from tierup.frontends.onnx import load_onnx
from tierup.ir.facts import Aim
from tierup.profile.machine import Machines, identify


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 200 GFLOP/s and 20 GB/s on two cores, whatever this one is; wide lines; two threads."""
    folder = tmp_path / "data"
    Machines(folder).save(msgspec.structs.replace(fake_machine(), identity=identify()))
    monkeypatch.setenv("TIERUP_DATA_DIR", str(folder))
    monkeypatch.setenv("TIERUP_THREADS", "2")
    monkeypatch.setenv("COLUMNS", "250")


def explain(path: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["explain", str(path), *arguments])


def shown(path: Path, *arguments: str) -> str:
    result = explain(path, *arguments)
    assert result.exit_code == 0, result.output or result.exception
    return result.output


def refusal(path: Path, *arguments: str) -> str:
    result = explain(path, *arguments)
    assert isinstance(result.exception, InputError)
    return str(result.exception)


def record(path: Path, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    shown(path, *arguments, "--json", str(tmp_path / "out.json"))
    found: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    return found


def weight(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.random.default_rng(1).standard_normal(shape).astype(np.float32), name)


def saved(proto: onnx.ModelProto, tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.fixture
def perceptron(tmp_path: Path) -> Path:
    """softmax(relu(x w0 + b) w1), batch open, and a draw of that."""
    nodes = [
        node("MatMul", ["x", "w0"], ["h"]),
        node("Add", ["h", "b"], ["a"]),
        node("Relu", ["a"], ["r"]),
        node("MatMul", ["r", "w1"], ["m"]),
        node("Softmax", ["m"], ["y"]),
        node("Bernoulli", ["y"], ["z"]),
    ]
    weights = [
        weight("w0", 20, 64),
        weight("b", 64),
        weight("w1", 64, 10),
        numpy_helper.from_array(np.array(1), "axis"),
    ]
    outputs = [value("y", ["batch", 10]), value("z", ["batch", 10])]
    return saved(model(nodes, [value("x", ["batch", 20])], outputs, weights), tmp_path)


def row(text: str, *beginning: str) -> str:
    """The one line that begins with these words."""
    pattern = r"\s+".join(map(re.escape, beginning)) + r"\s"
    (found,) = (line for line in text.splitlines() if re.match(pattern, line))
    return found


def test_regions_are_listed_in_running_order(perceptron: Path) -> None:
    text = shown(perceptron, "--shape", "x=7,20")
    first = row(text, "0", "matmul", "matmul add max", "[7, 64]")
    assert "18.8 k" in first  # 2 · 7 · 64 · 20 + 2 · 7 · 64
    assert "7.55 KiB" in first  # 4 · (7 · 20 + 20 · 64 + 64 + 1 + 7 · 64), the 1 for relu's zero
    assert row(text, "1", "matmul", "matmul", "[7, 10]")
    assert row(text, "2", "rows", "reduce_max sub exp reduce_sum div", "[7, 10]")
    assert "called with x float32[7, 20]" in text
    assert "200 GFLOP/s" in text


def test_what_runs_alone_and_what_was_not_fused_have_reasons(perceptron: Path) -> None:
    text = shown(perceptron)
    assert "draws random numbers" in row(text, "onnx.Bernoulli", "1")
    assert "two products are one region only in attention" in row(text, "1", "0→1")
    assert "a reduction follows the product" in row(text, "1", "1→2")
    assert "alive together at the busiest step" in text


def test_the_figures_as_json(perceptron: Path, tmp_path: Path) -> None:
    found = record(perceptron, tmp_path, "--shape", "x=7,20")
    assert set(found) == {
        "model", "machine", "inputs", "target", "threads", "calls", "call_us", "parts_us", "rest_us", "holds",
        "broken", "kernels", "regions", "alone", "views", "not_needed", "refused", "memory", "functions",
    }  # fmt: skip
    first, _, last = found["regions"]
    assert set(first) == {
        "number", "body", "runs", "kind", "ops", "domain", "open", "kernel", "shared_by", "work", "measured_us",
        "roofline_us", "bound", "share_of_roofline", "share_of_call", "operations", "reads", "writes", "recipe",
    }  # fmt: skip
    assert (first["domain"], first["open"]) == ([7, 64], ["batch", None])
    assert first["work"] == {
        "flops": 18816,
        "read_bytes": 560,
        "constant_bytes": 4 * (20 * 64 + 64 + 1),
        "written_bytes": 1792,
        "functions": {},
        "kept_bytes": 0,
        "again_bytes": 0,
    }
    assert last["work"]["functions"] == {"exp": 70}
    assert first["operations"][0] == {
        "op": "core.matmul",
        "inputs": ["x: f32[7, 20]", "w0: f32[20, 64]"],
        "outputs": ["h: f32[7, 64]"],
        "node": "node_h",
    }
    width = first["recipe"]["grid"][0]["step"]
    assert first["recipe"]["panels"] == [{"value": "w0", "width": width, "form": ""}]
    assert [(pair["producer"], pair["consumer"], pair["values"]) for pair in found["refused"]] == [
        (0, 1, ["r"]),
        (1, 2, ["m"]),
    ]
    (alone,) = found["alone"]
    assert (alone["op"], alone["node"]) == ("onnx.Bernoulli", "node_z")
    assert found["memory"] == {"arena_bytes": 7 * 64 * 4 + 320, "lower_bound_bytes": 7 * 64 * 4 + 320, "values": 2}
    assert found["threads"] == _native.threads() == 2


def test_times_and_shares_fit_together(perceptron: Path, tmp_path: Path) -> None:
    found = record(perceptron, tmp_path)
    parts = [*found["regions"], *found["alone"]]
    assert sum(part["measured_us"] for part in parts) + found["rest_us"] == pytest.approx(found["parts_us"])
    shares = sum(part["share_of_call"] for part in parts) + found["rest_us"] / found["parts_us"]
    assert shares == pytest.approx(1)
    for region in found["regions"]:
        work = region["work"]
        amount = work["read_bytes"] + work["constant_bytes"] + work["written_bytes"]
        # all levels of the fake machine give 20 GB/s
        assert region["roofline_us"] == pytest.approx(max(work["flops"] / 200e3, amount / 20e3))
        if region["measured_us"]:
            assert region["share_of_roofline"] == pytest.approx(region["roofline_us"] / region["measured_us"])


def test_open_sizes_are_made_up_as_by_run(perceptron: Path) -> None:
    assert "called with x float32[1, 20]" in shown(perceptron)


def test_one_region_with_its_recipe_and_program(perceptron: Path, tmp_path: Path) -> None:
    text = shown(perceptron, "--region", "0", "--shape", "x=7,20")
    assert "Region 0: matmul over [7, 64]; open: 7 is batch" in text
    assert "node_r" in row(text, "core.max", "a: f32[7, 64]")
    assert re.search(r"w0 in panels of \d+ columns", text)
    assert re.search(r"register tiles\s+\d+ × \d+, 4 × .*, 2 × .*, 1 × ", text)
    assert "Not fused, 0 → 1: two products" in text
    assert "program matmul(a: f32 in, w: f32 in" in text
    assert "define i32 @kernel" not in text
    found = record(perceptron, tmp_path, "--region", "2")
    assert found["region"]["number"] == 2
    assert found["code"]["program"].startswith("program rows(")
    assert found["code"]["llvm"] is None is found["code"]["assembly"]


def test_llvm_and_assembly_on_request(perceptron: Path, tmp_path: Path) -> None:
    text = shown(perceptron, "--region", "1", "--llvm")
    assert "define i32 @kernel(ptr %buffers" in text
    assert "Assembly" not in text
    found = record(perceptron, tmp_path, "--region", "1", "--asm")
    assert "kernel:" in found["code"]["assembly"]
    assert found["code"]["llvm"] is None


def test_a_region_that_does_not_exist(perceptron: Path) -> None:
    assert refusal(perceptron, "--region", "3") == "the model has no region 3: its regions are 0 to 2"
    assert "no region -1" in refusal(perceptron, "--region", "-1")


def test_code_is_shown_for_one_region(perceptron: Path) -> None:
    assert "say which: --region R" in refusal(perceptron, "--asm")


def test_inputs_that_do_not_fit_are_the_callers_error(perceptron: Path) -> None:
    assert "axis 1 is 3 instead of 20" in refusal(perceptron, "--shape", "x=5,3")


def test_a_model_that_compiles_nothing(tmp_path: Path) -> None:
    proto = model([node("Bernoulli", ["x"], ["y"])], [value("x", ["n"])], [value("y", ["n"])])
    path = saved(proto, tmp_path)
    text = shown(path)
    assert "No part of the model compiles to kernels." in text
    assert row(text, "onnx.Bernoulli", "1")
    assert "region 0: no part of it compiles to kernels" in refusal(path, "--region", "0")
    found = record(path, tmp_path)
    assert (found["regions"], found["refused"], found["kernels"]) == ([], [], 0)


def test_equal_regions_share_a_kernel(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("MatMul", ["a", "w"], ["b"]), node("MatMul", ["b", "w"], ["y"])]
    path = saved(model(nodes, [value("x", [2, 8])], [value("y", [2, 8])], [weight("w", 8, 8)]), tmp_path)
    found = record(path, tmp_path)
    assert [(region["kernel"], region["shared_by"]) for region in found["regions"]] == [(0, 3)] * 3
    assert "0 ×3" in row(shown(path), "1", "matmul")


def test_what_a_product_reads_through_counts_once(tmp_path: Path) -> None:
    """The right side is one matrix, repeated for four batches: the kernel reads it where it lies."""
    nodes = [node("Expand", ["w", "shape"], ["r"]), node("MatMul", ["x", "r"], ["y"])]
    shape = numpy_helper.from_array(np.array([4, 8, 16]), "shape")
    inputs = [value("x", [4, 3, 8]), value("w", [1, 8, 16])]
    found = record(saved(model(nodes, inputs, [value("y", [4, 3, 16])], [shape]), tmp_path), tmp_path)
    (product,) = found["regions"]
    assert product["work"]["read_bytes"] == 4 * (4 * 3 * 8 + 8 * 16)
    assert found["not_needed"] == 1


def test_a_guard_that_fails_is_said(tmp_path: Path) -> None:
    path = saved(positions(), tmp_path)
    assert "guard fails" not in shown(path, "--shape", "x=1,20,4")
    text = shown(path, "--shape", "x=1,40000,4")
    assert "the plan's guard fails, and the baseline answers the whole call" in text
    found = record(path, tmp_path, "--shape", "x=1,40000,4")
    assert found["holds"] is False
    assert found["broken"] == ["min(length, 30000), which is 30000, and length, which is 40000"]
    assert all(region["work"] is None is region["measured_us"] for region in found["regions"])
    assert found["memory"]["arena_bytes"] is None
    first, stray, closed = found["functions"]
    assert (first["stray"], stray["stray"], closed["tier"]) == (False, True, 2)
    assert stray["kernels_us"] > 0
    assert "like these" in text


def test_help_shows_an_example() -> None:
    result = CliRunner().invoke(app, ["explain", "--help"])
    assert result.exit_code == 0
    assert "Example: tierup explain" in result.output
    assert "--html" in result.output


def test_the_function_that_is_closed_to_the_call_stands_beside_the_open_one(perceptron: Path, tmp_path: Path) -> None:
    found = record(perceptron, tmp_path, "--shape", "x=6,20")
    opened, closed = found["functions"]
    assert (opened["tier"], opened["signature"]) == (1, None)
    assert (closed["tier"], closed["signature"]) == (2, [[6, 20]])
    for row in (opened, closed):
        assert row["regions"] == 3
        assert row["kernels_us"] > 0
        assert row["call_us"] > 0
    assert "[6, 20]" in shown(perceptron, "--shape", "x=6,20")


def test_closed_regions_have_no_open_sizes(perceptron: Path, tmp_path: Path) -> None:
    opened = record(perceptron, tmp_path, "--shape", "x=6,20")["regions"][0]
    closed = record(perceptron, tmp_path, "--shape", "x=6,20", "--closed")["regions"][0]
    assert opened["domain"] == closed["domain"] == [6, 64]
    assert opened["open"][0] is not None
    assert closed["open"] == [None, None]
    output = shown(perceptron, "--shape", "x=6,20", "--closed", "--region", "0")
    assert "tier 2" in output
    assert "none: every size is closed" in output


def test_closed_regions_are_the_variants_that_tier_2_has(perceptron: Path, tmp_path: Path) -> None:
    """The open cut, with kernels that are proved and served for this signature."""
    planned = make_plan(load_onnx(perceptron), Aim((((6, 20),),)))
    slots, variants = planned.compiled.plan.slots, planned.compiled.plan.variants
    assert variants
    opened = record(perceptron, tmp_path, "--shape", "x=6,20")["regions"]
    found = record(perceptron, tmp_path, "--shape", "x=6,20", "--closed")["regions"]
    assert [region["ops"] for region in found] == [region["ops"] for region in opened]
    assert {variant.kernel for variant in variants} == {r["kernel"] for r in found if r["kernel"] >= slots}
    assert all(region["measured_us"] > 0 for region in found)
    for region in found:
        code = record(perceptron, tmp_path, "--shape", "x=6,20", "--closed", "--region", str(region["number"]))["code"]
        assert code["program"] == planned.texts[region["kernel"]]


def test_what_holds_in_the_call_is_relied_on(tmp_path: Path) -> None:
    path, mask = saved(chain(count=8), tmp_path), tmp_path / "m.npy"
    np.save(mask, np.full((6, 32), 0.5, np.float32))
    given = ["--input", f"m={mask}", "--shape", "x=6,32"]
    found = record(path, tmp_path, *given, "--closed")
    opened, closed = found["functions"]
    assert (opened["facts"], closed["facts"]) == ([], ["every element of 'm' is 0.5"])
    assert found["regions"][0]["measured_us"] > 0
    code = record(path, tmp_path, *given, "--closed", "--region", "0")["code"]
    assert "tanh" not in code["program"]
    assert "every element of 'm' is 0.5" in " ".join(shown(path, *given, "--closed").split())


def test_with_control_flow_the_closed_function_is_one_of_its_own(tmp_path: Path) -> None:
    """Closed sizes may decide branches, and with them the cut."""
    branches = [helper.make_graph([node(op, ["x"], ["b"])], op, [], [value("b", ["n"])]) for op in ("Exp", "Sqrt")]
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("ReduceSum", ["s"], ["n"], keepdims=0),
        node("Greater", ["n", "most"], ["many"]),
        node("If", ["many"], ["c"], then_branch=branches[0], else_branch=branches[1]),
        node("Relu", ["c"], ["y"]),
    ]
    most = numpy_helper.from_array(np.array(100, np.int64), "most")
    path = saved(model(nodes, [value("x", ["n"])], [value("y", ["n"])], [most]), tmp_path)
    found = record(path, tmp_path, "--shape", "x=12", "--closed")
    assert [region["ops"] for region in found["regions"]] == [["sqrt", "max"]]
    assert found["regions"][0]["body"] is None
    assert found["regions"][0]["runs"] == 1


def test_without_open_sizes_there_is_nothing_to_close(tmp_path: Path) -> None:
    path = saved(model([node("Relu", ["x"], ["y"])], [value("x", [4, 8])], [value("y", [4, 8])]), tmp_path)
    assert "no open sizes" in refusal(path, "--closed")
    assert len(record(path, tmp_path)["functions"]) == 1
