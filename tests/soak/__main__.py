"""python -m tests.soak [SECONDS] [JSON]: traffic for so long (3600). Prints figures; ends with 1 if one is bad."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from tests.soak.soak import soak


def main() -> int:
    for variable in ("TIERUP_ADAPT", "TIERUP_FORCE_TIER"):  # as pytest sets them for others
        os.environ.pop(variable, None)
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3600.0
    with tempfile.TemporaryDirectory(prefix="tierup-soak-", ignore_cleanup_errors=True) as folder:
        outcome = soak(seconds, Path(folder), lambda text: print(text, file=sys.stderr, flush=True))
    text = json.dumps({**outcome.figures, "findings": outcome.findings}, indent=1)
    print(text)
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(text, encoding="utf-8")
    return 1 if outcome.findings else 0


if __name__ == "__main__":
    sys.exit(main())
