"""python -m tests.conformance [PART OF A NAME]: run the ONNX backend suite and print what passed and what did not."""

from __future__ import annotations

import sys
import time

from tests.conformance.suite import known_failures, run_suite
from tierup.config import Config


def main() -> int:
    select = sys.argv[1] if len(sys.argv) > 1 else ""
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
    print(f"took {time.monotonic() - started:.1f} s")
    print(tally.compiled_line())
    print(tally.line())
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
