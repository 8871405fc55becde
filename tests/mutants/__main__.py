"""Do the tests see faults? ``python tests/mutants [NAME ...]`` plants some, one at a time, in a copy of the project.

Each is caught, survives, or is gone: its text is not there any more, and wants to be planted elsewhere. The exit
status is 0 where all are caught. NAME is a fault's, or a package's; ``--list`` names them, ``--json FILE`` writes what
came of them, ``--root FOLDER`` takes another checkout of the project.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from planted import ROOT, copy_of, mutants, run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of faults, or of packages; by default all")
    parser.add_argument("--list", action="store_true", help="name the faults")
    parser.add_argument("--json", type=Path, help="a file for what came of them")
    parser.add_argument("--root", type=Path, default=ROOT, help="the project, by default this one")
    asked = parser.parse_args()
    every = mutants()
    known = {mutant.name for mutant in every} | {mutant.file.split("/")[0] for mutant in every}
    if unknown := sorted({*asked.names} - known):
        parser.error(f"there is no fault {unknown[0]!r}; --list names them")
    chosen = [each for each in every if not asked.names or {each.name, each.file.split("/")[0]} & {*asked.names}]
    if asked.list:
        for mutant in chosen:
            sys.stdout.write(f"{mutant.name:32} {mutant.file}: {mutant.what}\n")
        sys.exit()
    outcomes: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        root, begin = asked.root.resolve(), time.monotonic()
        for mutant, outcome in run(chosen, root, copy_of(root, Path(folder))):
            outcomes[mutant.name] = outcome.word
            seconds, begin = time.monotonic() - begin, time.monotonic()
            sys.stdout.write(f"{outcome.word:9} {seconds:5.0f} s  {mutant.name}  {outcome.said}\n")
            sys.stdout.flush()
    counts = Counter(outcomes.values())
    sys.stdout.write(", ".join(f"{n} {word}" for word, n in sorted(counts.items())) + "\n")
    if asked.json:
        asked.json.write_text(json.dumps(outcomes, indent=1) + "\n", encoding="utf-8")
    sys.exit(counts["caught"] < len(chosen))
