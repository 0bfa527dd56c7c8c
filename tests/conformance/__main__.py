"""python -m tests.conformance [--fallbacks] [PART OF A NAME]: run the ONNX backend suite and print what passed and what
did not; with --fallbacks, also the float node tests that did not compile as a whole."""

from __future__ import annotations

import sys
import time

from tests.conformance.suite import known_failures, run_suite
from tierup.config import Config


def main() -> int:
    names = [argument for argument in sys.argv[1:] if argument != "--fallbacks"]
    select = names[0] if names else ""
    started = time.monotonic()
    tally = run_suite(select)
    for name, reason in sorted(tally.failed.items()):
        print(f"failed {name}: {reason}")
    for name, reason in sorted(tally.not_implemented.items()):
        print(f"not implemented {name}: {reason}")
    known = {} if select else known_failures(Config().force_tier or 0)
    problems = tally.problems(known)
    if not select:
        print(f"{len(known)} known failures, {len(problems)} disagreements with the list")
        for problem in problems:
            print(f"  {problem}")
    for line in tally.fell_back if "--fallbacks" in sys.argv else ():
        print(f"fell back {line}")
    print(f"took {time.monotonic() - started:.1f} s")
    print(tally.compiled_line())
    print(tally.line())
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
