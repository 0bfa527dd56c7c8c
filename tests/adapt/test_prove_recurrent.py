"""Proofs of recurrent kernels: right ones pass, at one step as over many, and damaged ones are refused."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from tests.adapt.networks import load, of_kind, program_of, with_program
from tests.codegen.running import HOST
from tests.runtime.layers import layer

from tierup.adapt.case import Case
from tierup.adapt.case_record import record_of
from tierup.adapt.prove import Proof, prove, prove_code
from tierup.codegen.objects import build
from tierup.lower.parse import parse_program
from tierup.lower.text import print_program

SERIAL, ROUNDS = 9, 70  # hidden units of layers whose steps are one loop, or rounds


def proof_of(case: Case) -> Proof:
    loaded = load(case)  # held while it is called
    return prove(case, [address for address, _ in loaded])


def case_of(op: str, hidden: int, **options: Any) -> Case:
    return of_kind(layer(op, hidden, **options), "recurrent")


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("hidden", [SERIAL, ROUNDS])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_right_kernels_pass(op: str, hidden: int, direction: str, lengths: bool) -> None:
    proof = proof_of(case_of(op, hidden, direction=direction, lengths=lengths))
    assert (proof.passed, proof.reason) == (True, "")
    assert proof.rounds >= 9
    assert 0 < proof.rms <= 2 * proof.rms_baseline


def test_rounds_and_groups_reach_the_worker() -> None:
    case = case_of("LSTM", ROUNDS)
    (kernel,) = case.kernels
    assert kernel.rounds is not None
    record = msgspec.msgpack.decode(msgspec.msgpack.encode(record_of(case)), type=type(record_of(case)))
    proof = prove_code(record, build([program_of(case)], HOST), HOST)
    assert proof.passed, proof.reason


DAMAGED = {
    "another gate": (r"weights\[j \+ k6 \* 64 \+ 16", "weights[j + k6 * 64 + 32"),
    "another function": (r"= tanh ", "= exp "),
    "a state that is not kept": (r"store last1\[i6.*\n", ""),
    "the step before the one before": (r": i64\[\] = fill 1\n", ": i64[] = fill 2\n"),
    "a row that never begins": (r"for z < 1 step 1 from s0", "for z < 1 step 1 from s1"),
    "a length too many": (r"= lt %now", "= le %now"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_kernels_are_refused(name: str) -> None:
    case = case_of("LSTM", ROUNDS)
    text, count = re.subn(*DAMAGED[name], print_program(program_of(case)), count=1)
    assert count == 1
    assert not proof_of(with_program(case, parse_program(text))).passed
