"""Golden values, by hand: ``python tests/golden [NAME ...]`` says how far they are from what they were.

``python tests/golden --write NAME ... --why "..."`` writes them anew, and keeps the reason in the file; NAME may end
in ``*``. Only a change that is meant is written.
"""

import argparse
import fnmatch
import logging
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:1] = [str(TESTS.parent), str(TESTS)]

from golden import store  # noqa: E402
from golden.all import MAKERS, made  # noqa: E402

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["*"])
    parser.add_argument("--write", action="store_true", help="write the files anew")
    parser.add_argument("--why", default="", help="the reason, which is kept in each file")
    asked = parser.parse_args()
    logging.disable()
    names = [name for name in MAKERS if any(fnmatch.fnmatch(name, pattern) for pattern in asked.names)]
    if not names:
        parser.error(f"there are no such values; there are {', '.join(MAKERS)}")
    for name in names:
        begin = time.perf_counter()
        values = made(name)
        said = f"{time.perf_counter() - begin:5.1f} s  {name}: "
        if asked.write:
            store.write(name, values, asked.why)
            said += "written"
        else:
            said += (
                "; ".join(store.differences(name, values)[:9]) or f"{store.farthest(name, values):.2g} of the tolerance"
            )
        sys.stdout.write(f"{said}\n")
