"""Proves a compiled kernel: runs it alone on drawn inputs and compares it with its region's core ops in float64.

A kernel may serve if in every round each element y is within the bound, |y - y64| <= c · eps · B, with
c = 4 + sqrt(longest sum) (`reference/bounds.py` has B), NaN and infinities stand where they stand in float64, nothing
outside its results was written, no memory was taken from the system, and its RMS error is at most twice that of the
baseline (four times with Winograd's sums): the same ops one by one in the graph's own precision, products added up in
order. RMS errors are in units of eps · B, so that each element counts the same, and taken over normal elements.

Rounds differ in sizes (typical, ragged, larger, one, none, broadcast), in elements (normal, of many magnitudes,
positive, on jumps, NaN and infinities, the ends of the range), in where buffers lie, in how the range is cut, and in
whether a result is written over an input. A kernel that crashes or hangs is not seen to here: proofs run in workers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
from msgspec import Struct

from tierup.adapt.case import Case, value_of
from tierup.adapt.case_record import CaseRecord, case_of
from tierup.adapt.draws import Draw, draw_inputs, draw_sizes, indices_given, least_elements, outside, why_unfit
from tierup.adapt.messages import Prove
from tierup.adapt.narrowing import rounding_errors
from tierup.adapt.part import PART_ELEMS, Lengths, Part, draw_part, part_lengths, whole_of
from tierup.adapt.proof import REASON_LIMIT_CHARS, Proof
from tierup.adapt.trial import Held, Sized, Trial, overwrites
from tierup.codegen.target import Target
from tierup.errors import InputError, TierupError
from tierup.ir.graph import ValueId
from tierup.ir.types import Array, DType, TensorType
from tierup.lower.kernel import Panels
from tierup.reference.bounds import (
    EPS,
    Bounded,
    evaluate_bounded,
    evaluate_plainly,
    longest_sum,
    missing_rules,
    tolerance,
    within,
)
from tierup.runtime.kernels import load_code

RMS_FACTOR = 2.0
WINOGRAD_RMS_FACTOR = 4.0  # the sums of F(2×2, 3×3) are of larger numbers
_RMS_ELEMS = 64  # with fewer, one lucky rounding of the baseline's decides
_WANTED_ELEMS = 512  # to judge, and to compare; small regions are tried more often
_LAPS, _MORE_ROUNDS, _MORE_PARTS = 8, 16, 16
_EXACT_LAPS = 3  # of what rounds nothing: there every element is judged to the last bit, and none is compared
_ROUNDS_TO_BE_SURE = 32  # all elements of a row may owe their errors to one sum, and one lucky sum says nothing
_LARGE_ELEMS = 1 << 20  # an evaluation of more takes some tens of ms: then a few rounds have to do
_HUGE_ELEMS = 1 << 25  # an evaluation of more takes seconds, since each of its values takes more than the caches
_GREEDY_ROUNDS = 3  # one after another in which memory was taken: now and then it may be another thread's
_WHOLE_ELEMS = 1 << 18  # of more, parts are evaluated
_LAP_ELEMS = 1 << 21  # evaluated, after which there is no further lap: sums of very many give few elements to judge
_WEIGHT_ELEMS = 1 << 18  # of more, a constant side of products is drawn anew only where that can tell something new
_JUDGED_SHARE = 0.1  # where less than this can be compared, nothing was proved


class Round(Struct, frozen=True):
    """How a kernel is tried once. `shift` is by how many elements, and a byte, inputs lie off a 64-byte border,
    `compared` whether the baseline is run, too."""

    style: str = "normal"
    sizes: str = "typical"
    shift: int = 0
    pieces: int = 1
    backwards: bool = False
    in_place: bool = False
    bad_index: bool = False
    compared: bool = False

    def __str__(self) -> str:
        words = [f"{self.style} elements", f"{self.sizes} sizes"]
        words += [f"inputs off their border by {self.shift} elements and a byte"] * bool(self.shift)
        words += [f"a range cut in {self.pieces}"] * (self.pieces > 1)
        words += ["a result written over an input"] * self.in_place
        words += ["an index outside"] * self.bad_index
        return ", ".join(words)


_COMPARED = Round("normal", "few", compared=True)
ROUNDS = (
    _COMPARED,
    Round("wild", "ragged", shift=3),
    Round("wide", "ragged", shift=1, pieces=3),
    Round("positive", "larger", pieces=4, backwards=True),
    Round("normal", "typical", in_place=True),
    Round("normal", "typical", bad_index=True),
    Round("simple", "ragged", pieces=2),
    Round("extreme", "typical"),
    Round("normal", "one"),
    Round("normal", "none"),
    Round("positive", "mixed"),
    Round("normal", "larger", shift=5, pieces=2),
)
_FEW_ROUNDS = ROUNDS[:7]
# Closed sizes alone make a case that large: the same program with open sizes has gone through all rounds.
_LEAST_ROUNDS = (_COMPARED, Round("wide", "ragged", shift=1, pieces=3))


class Refused(Exception):
    """A round that shows a kernel to be wrong; the message says how."""


def prove(case: Case, addresses: Sequence[int], *, seed: int = 0) -> Proof:
    """Try the kernels of a case whose machine code begins at `addresses`. Equal seeds draw equal rounds."""
    began = time.perf_counter()
    attempt = _Attempt(case, addresses, seed)
    try:
        with np.errstate(all="ignore"):  # of what is drawn, too
            attempt.go()
        reason = ""
    except Refused as refused:
        reason = str(refused)[:REASON_LIMIT_CHARS]
    except TierupError as error:
        reason = f"the region cannot be evaluated: {error}"[:REASON_LIMIT_CHARS]
    return attempt.proof(reason, time.perf_counter() - began)


def prove_code(record: CaseRecord, codes: Sequence[bytes], target: Target, *, seed: int = 0) -> Proof:
    """The same for a case as data and machine code as `codegen.objects.build` gives it: what a worker does."""
    case = case_of(record)
    loaded = load_code(codes, target)  # held while it is called
    return prove(case, [address for address, _ in loaded], seed=seed)


def prove_job(job: Prove) -> Proof:
    """A worker's answer."""
    return prove_code(msgspec.msgpack.decode(job.case, type=CaseRecord), job.codes, job.target)


class _Question(Struct, frozen=True):
    """Inputs at some sizes, and what should come out."""

    sized: Sized
    inputs: dict[ValueId, Array]
    unit: float
    answers: list[_Answer]


class _Answer(Struct, frozen=True):
    """What should come out in one part of the results."""

    part: Part
    arguments: list[Array]
    expected: list[Bounded]


class _Attempt:
    def __init__(self, case: Case, addresses: Sequence[int], seed: int) -> None:
        self._case, self._addresses, self._seed = case, addresses, seed
        self._rounds = self._greedy = 0  # in all, and the last ones if they took memory
        self._worst = 0.0
        self._squares = np.zeros(2)  # of the errors of kernel and baseline
        self._counted = 0
        self._judged = self._seen = self._evaluated = 0
        self._unanswered = ""
        self._rounding = np.random.default_rng((seed, _LAPS))
        self._narrowed = np.zeros(0)  # errors that come of rounding to bf16
        self._lengths: dict[tuple[int, ...], Lengths | None] = {}
        self._least = least_elements(case)
        self._weights: dict[ValueId, Array] = {}  # large ones that rounds have in common, and their panels
        self._panels: dict[Panels, Held] = {}

    def go(self) -> None:
        missing = missing_rules(self._case.graph)
        if missing:
            raise Refused(f"{', '.join(missing)} has no rule for its error bound, so the kernel cannot be judged")
        for lap in range(_LAPS if self._rounds_something else _EXACT_LAPS):
            for number, round in enumerate(self._planned()):
                self._try(round, np.random.default_rng((self._seed, lap, number)))
            if self._seen >= _WANTED_ELEMS or self._evaluated > _LAP_ELEMS:
                break
        for number in range(_MORE_ROUNDS if self._counted else 0):  # where nothing is rounded, nothing is compared
            if self._counted >= _WANTED_ELEMS:
                break
            self._try(_COMPARED, np.random.default_rng((self._seed, _LAPS, number)))
        for number in range(_ROUNDS_TO_BE_SURE if self._is_sloppy() else 0):
            self._try(_COMPARED, np.random.default_rng((self._seed, _LAPS, _MORE_ROUNDS + number)))
        self._conclude()

    @property
    def _rounds_something(self) -> bool:
        """Whether floats are among what the region computes."""
        graph = self._case.graph
        types = (graph.type(value) for node in graph.nodes for value in node.outputs if value is not None)
        return any(isinstance(type, TensorType) and type.dtype.is_float for type in types)

    def _planned(self) -> Iterator[Round]:
        """The rounds that make a difference for this case."""
        closed = self._case.open_sizes == 0
        if draw_sizes(self._case, np.random.default_rng(self._seed), "typical", self._least) is None:
            raise Refused(f"no sizes were found for which the shapes of the region agree: {why_unfit(self._case)}")
        few = _LEAST_ROUNDS if self._least > _HUGE_ELEMS else _FEW_ROUNDS
        rounds = few if self._least > _LARGE_ELEMS else ROUNDS
        for round in rounds:
            same = closed and round.sizes in ("one", "mixed", "none")
            if not same:
                yield round

    def _try(self, round: Round, draw: Draw) -> None:
        sized = draw_sizes(self._case, draw, round.sizes, self._least)
        if (
            sized is None
            or (round.bad_index and not indices_given(sized))
            or (round.in_place and not overwrites(sized))
        ):
            return
        question = self._question(sized, round, draw)
        if question is None:
            return
        given = outside(question.sized, question.inputs, draw) if round.bad_index else question.inputs
        if given is None or (round.bad_index and self._answers(given)):
            return
        packed = {
            panels: held for panels, held in self._panels.items() if given[panels.value] is self._weights[panels.value]
        }
        trial = Trial(question.sized, self._addresses, given, shift=round.shift, in_place=round.in_place, packed=packed)
        if round.style == "normal" and not self._weights:
            self._weights = {value: given[value] for value in self._large_weights(question.sized)}
            self._panels = trial.packed(self._weights)
        self._rounds += 1
        parts = len(question.answers)
        self._evaluated += min(sized.elements, parts * PART_ELEMS) if parts > 1 else sized.elements
        try:
            self._look_at(trial, question, round, self._run(trial, round, draw))
        except Refused as refused:
            raise Refused(f"{refused} ({round}; open sizes {list(trial.sized.open_sizes)})") from None

    def _question(self, sized: Sized, round: Round, draw: Draw) -> _Question | None:
        """Inputs for which the region has an answer, and that answer; indices may be computed and end outside."""
        terms = longest_sum(self._case.graph, sized.shape)
        # To draw and pack them takes longer than all else. What a product makes of many magnitudes, or of equal ones,
        # its other side shows as well; NaN, infinities and denormals have to be tried on both.
        own = {} if round.style == "wild" else self._weights
        known = {value: array for value, array in own.items() if array.shape == sized.shape(value)}
        for places in (None, 2, 1):
            inputs = draw_inputs(sized, draw, round.style, 1 / (4 * max(terms, 1)), places, known)
            arguments = [inputs[value] for value in self._case.graph.inputs]
            try:
                answers = [_answer(part, arguments, tolerance(terms)) for part in self._parts(sized, round, draw)]
                return _Question(sized, inputs, tolerance(terms), answers)
            except InputError as error:
                self._unanswered = str(error)
        return None

    def _large_weights(self, sized: Sized) -> Iterator[ValueId]:
        """Constant sides of products that are large, and are nothing else."""
        buffers = {buffer for kernel in self._case.kernels for buffer in kernel.buffers}
        plain = {buffer.value for buffer in buffers if isinstance(buffer, Panels) and not buffer.form}
        others = {value_of(buffer) for buffer in buffers if not isinstance(buffer, Panels) or buffer.form}
        for value in plain - others:
            if math.prod(sized.shape(value)) > _WEIGHT_ELEMS and sized.dtype(value) is DType.F32:
                yield value

    def _parts(self, sized: Sized, round: Round, draw: Draw) -> list[Part]:
        """All of the results, or of large ones the last part and any other; several where results are compared."""
        if sized.elements <= _WHOLE_ELEMS or round.bad_index:
            return [whole_of(sized)]
        if sized.open_sizes not in self._lengths:
            self._lengths[sized.open_sizes] = part_lengths(sized)
        lengths = self._lengths[sized.open_sizes]
        if lengths is None:
            return [whole_of(sized)]
        last = draw_part(sized, lengths, draw, last=True)
        elements = max(sum(math.prod(end - begin for begin, end in box) for box in last.outputs), 1)
        others = -(-_WANTED_ELEMS // elements) - 1 if round.compared else 1  # so many take less time than another round
        parts = [last, *(draw_part(sized, lengths, draw, last=False) for _ in range(min(max(others, 1), _MORE_PARTS)))]
        return list({part.outputs: part for part in parts}.values())

    def _answers(self, inputs: Mapping[ValueId, Array]) -> bool:
        """Whether the region has an answer to inputs that may have an index outside."""
        try:
            evaluate_plainly(self._case.graph, self._case.weights, [inputs[v] for v in self._case.graph.inputs])
        except InputError:
            return False
        return True

    def _run(self, trial: Trial, round: Round, draw: Draw) -> int:
        trial.clear()
        cuts = sorted(draw.integers(0, trial.steps + 1, round.pieces - 1).tolist())
        status = trial.run(cuts, backwards=round.backwards)
        trespass = trial.trespass()
        if trespass is not None:
            raise Refused(trespass)
        self._greedy = self._greedy + 1 if trial.taken_bytes else 0
        if self._greedy >= _GREEDY_ROUNDS:
            raise Refused(f"it takes {trial.taken_bytes} bytes from the system and does not give them back")
        if status == 0 and trial.unwritten_bools():
            raise Refused("a bool that it should have written is neither true nor false")
        return status

    def _look_at(self, trial: Trial, question: _Question, round: Round, status: int) -> None:
        if status != 0:
            if round.bad_index:
                return
            raise Refused(f"it returns {status} where every index lies inside")
        results = trial.results()
        if round.bad_index:
            # Where nobody needs what the index leads to, the answer is the same as without it.
            (answer,) = question.answers
            pairs = zip(results, answer.expected, strict=True)
            if not all(within(result, wanted, question.unit).all() for result, wanted in pairs):
                raise Refused("it takes an index that lies outside")
            return
        for answer in question.answers:
            self._look_at_part(answer, answer.part.results(results), question.unit, round)
        if trial.unwritten_floats():
            raise Refused("it leaves out elements that it should have written")

    def _look_at_part(self, answer: _Answer, results: Sequence[Array], unit: float, round: Round) -> None:
        part = answer.part
        for number, (result, wanted) in enumerate(zip(results, answer.expected, strict=True)):
            self._judge(result, wanted, unit, number, part)
        if round.compared:
            self._compare(answer, results)
            errors = rounding_errors(part.graph, part.weights, answer.arguments, results, unit, self._rounding)
            self._narrowed = np.append(self._narrowed, errors)

    def _judge(self, result: Array, expected: Bounded, unit: float, number: int, part: Part) -> None:
        good = within(result, expected, unit)
        if not good.all():
            begins = [begin for begin, _ in part.outputs[number]]
            raise Refused(_difference(result, expected, unit, good, f"result {number}", begins))
        self._seen += result.size
        self._judged += result.size - int(np.sum(expected.free))
        if expected.is_float and expected.bound is not None:
            errors = _errors(result, expected)
            self._worst = max(self._worst, float(errors.max(initial=0.0, where=np.isfinite(errors))))

    def _compare(self, answer: _Answer, results: Sequence[Array]) -> None:
        """Add up the errors of kernel and baseline."""
        baseline = evaluate_plainly(answer.part.graph, answer.part.weights, answer.arguments)
        for result, plain, wanted in zip(results, baseline, answer.expected, strict=True):
            # f64 results cannot be told from those of the oracle, which rounds as they do
            if wanted.is_float and wanted.bound is not None and wanted.dtype is not DType.F64:
                both = np.stack([_errors(result, wanted), _errors(np.asarray(plain), wanted)])
                both = both[:, np.isfinite(both).all(0)]
                self._squares += np.sum(both**2, axis=1)
                self._counted += both.shape[1]

    @property
    def _factor(self) -> float:
        """How many times the baseline's RMS error a kernel may have."""
        transformed = any(node.attrs.get("algorithm") == "winograd" for node in self._case.graph.nodes)
        return WINOGRAD_RMS_FACTOR if transformed else RMS_FACTOR

    def _rms(self) -> tuple[float, float]:
        kernel, baseline = np.sqrt(self._squares / max(self._counted, 1))
        return float(kernel), float(baseline)

    def _is_sloppy(self) -> bool:
        """Whether the errors so far are too large beside those of the baseline."""
        kernel, baseline = self._rms()
        return self._counted >= _RMS_ELEMS and kernel > self._factor * baseline

    def _conclude(self) -> None:
        if self._rounds == 0:
            raise Refused(f"no inputs were found that it has an answer for: {self._unanswered}")
        if self._judged < _JUDGED_SHARE * self._seen:
            raise Refused(f"only {self._judged} of {self._seen} elements could be compared")
        if self._is_sloppy():
            kernel, baseline = self._rms()
            raise Refused(
                f"its RMS error over {self._counted} elements is {kernel:.3g} eps · B, more than {self._factor:g} "
                f"times the baseline's {baseline:.3g}"
            )

    def proof(self, reason: str, seconds: float) -> Proof:
        kernel, baseline = self._rms()
        narrowed = float(np.sqrt(np.mean(self._narrowed**2))) if self._narrowed.size else 0.0
        counts = (self._judged, self._rounds)
        return Proof(not reason, reason, self._worst, kernel, baseline, *counts, seconds, narrowed)


def _answer(part: Part, arguments: Sequence[Array], unit: float) -> _Answer:
    given = part.arguments(arguments)
    return _Answer(part, given, evaluate_bounded(part.graph, part.weights, given, unit))


def _errors(result: Array, expected: Bounded) -> Array:
    """Errors in units of eps · B, where there is something to measure: finite values and bounds."""
    assert expected.bound is not None
    measured = np.isfinite(expected.bound) & (expected.bound > 0) & np.isfinite(expected.value)
    measured &= np.abs(expected.value) < np.finfo(np.float32).max
    with np.errstate(all="ignore"):
        off = np.abs(result[measured].astype(np.float64) - expected.value[measured])
        return np.asarray(off / (EPS * expected.bound[measured]))


def _difference(result: Array, expected: Bounded, unit: float, good: Array, name: str, begins: Sequence[int]) -> str:
    """A sentence about the first element that is wrong; `begins` is where the part begins in the whole."""
    place = tuple(int(axis[0]) for axis in np.nonzero(~good)) if good.ndim else ()
    there = [begin + at for begin, at in zip(begins, place, strict=True)]
    got, wanted = result[place], expected.value[place]
    count = int(np.sum(~good))
    at = f"{name} at {there} is {got} instead of {wanted}"
    if expected.is_float and np.isfinite(got) and np.isfinite(wanted):
        allowed = 0.0 if expected.bound is None else unit * float(expected.bound[place])
        at += f", off by {abs(float(got) - float(wanted)):.3g} where {allowed:.3g} is allowed (c = {unit / EPS:.3g})"
    return f"{at}; {count} of {result.size} elements are wrong"
