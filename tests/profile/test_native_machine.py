"""The real measurements, on this machine: no figure is expected, only that there is one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tierup.profile.machine import Machine, Machines, identify, load_or_measure, measure

NATIVE = Path(__file__).parents[2] / "native"
SOURCES = ("machine_kernels", "machine_measure", "machine_fork_join", "perf_counters", "pool")


@pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")
def test_counters_against_a_fake_kernel(tmp_path: Path) -> None:
    tests = (NATIVE / f"tests/{name}.cpp" for name in ("main", "machine_test"))
    sources = [*tests, *(NATIVE / f"src/{name}.cpp" for name in SOURCES)]
    program = tmp_path / "machine_test"
    options = ["-std=c++20", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}/src"]
    subprocess.run(["c++", *options, *sources, "-o", program], check=True)
    result = subprocess.run([program], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr


def test_this_machine_is_measured_and_fits_its_record() -> None:
    machine = measure()
    assert msgspec.json.decode(msgspec.json.encode(machine), type=Machine) == machine  # all bounds hold
    assert machine.measured.fma_gflops_one > 0
    assert machine.measured.bandwidths[-1].level == "memory"
    assert machine.key == identify().key


def test_the_background_process_stores(tmp_path: Path) -> None:
    """The parent leaves as soon as there is a record; a busy machine would be measured several times otherwise."""
    script = (
        "import sys, pathlib, time; from tierup.profile import machine;"
        "from tierup.profile.machine import Machines, identify, measure_in_background;"
        "machine.wait_for_quiet = lambda: True;"  # other tests run now
        "data = pathlib.Path(sys.argv[1]); measure_in_background(data);"
        "exec('while not Machines(data).load(identify()): time.sleep(0.05)')"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=300, env=_environment())
    stored = Machines(tmp_path).load(identify())
    assert stored is not None
    assert load_or_measure(tmp_path) == stored


def test_exit_does_not_wait_for_the_background(tmp_path: Path) -> None:
    """With a holder of the lock that never ends, the interpreter must still leave."""
    script = (
        "import sys, pathlib; from tierup.profile.machine import Machines, measure_in_background;"
        "from tierup.profile import machine; machine.wait_for_quiet = lambda: True;"
        "data = pathlib.Path(sys.argv[1]); held = Machines(data).measuring(0); held.__enter__();"
        "measure_in_background(data)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=60, env=_environment())


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
