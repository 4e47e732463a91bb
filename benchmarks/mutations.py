"""How often is a fault told right in a file that people have changed? Counts; exit status 1 where an answer is wrong.

    python benchmarks/mutations.py                       one release of each shape
    python benchmarks/mutations.py 0.5.12 0.5.17         these
    python benchmarks/mutations.py --copies 400 --seed 7

For each release, mutated copies (tests/source/mutations.py) are spread over the files in which faults are known. Right
is the answer for the file as it was released; where a patch exists, the mended file is one more, and right is `fixed`.
"Cannot tell" is no wrong answer, and is counted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from diag.errors import DiagError
from diag.fixes.catalogue import FIXES
from diag.fixes.entry import Fix
from diag.source import wheels
from tests.source.mutations import mutated

SHAPES = ("0.4.3", "0.4.8", "0.5.9", "0.5.12", "0.5.13", "0.5.16", "0.5.17", "0.5.21", "0.5.23")


def subjects(version: str) -> list[tuple[Fix, str, str]]:
    """(fault, text, right answer), the mended text as well where there is one."""
    found = []
    wheel = wheels.fetch("sglang", version)
    for fix in FIXES:
        try:
            text = wheels.read(wheel, fix.file).decode("utf-8")
        except DiagError:
            continue
        state = fix.detect(text).state
        found.append((fix, text, state))
        if fix.mend is not None and state == "present":
            found.append((fix, fix.rewrite(text), "fixed"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=SHAPES)
    parser.add_argument("--copies", type=int, default=200, help="mutated copies of each release")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    whole: Counter[str] = Counter()
    print(f"{'release':14}{'copies':>8}{'right':>8}{'cannot tell':>13}{'wrong':>8}{'seconds':>9}")
    for version in options.versions:
        begun, counts = time.monotonic(), Counter[str]()
        every = subjects(version)
        for number in range(options.copies):
            fix, text, right = every[number % len(every)]
            found = fix.detect(mutated(text, fix.cls, options.seed * 1_000_000 + number))
            answer = "right" if found.state == right else "cannot tell" if found.state == "unknown" else "wrong"
            counts[answer] += 1
            if answer != "right":
                print(
                    f"  {fix.id}, copy {number}: {found.state} instead of {right}: {found.why[:120]}", file=sys.stderr
                )
        cells = f"{counts['right']:>8}{counts['cannot tell']:>13}{counts['wrong']:>8}"
        print(f"{version:14}{options.copies:>8}{cells}{time.monotonic() - begun:>9.1f}", flush=True)
        whole += counts
    print(f"{'all':14}{whole.total():>8}{whole['right']:>8}{whole['cannot tell']:>13}{whole['wrong']:>8}")
    return 1 if whole["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
