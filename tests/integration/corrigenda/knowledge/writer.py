"""A process that writes into a knowledge base, and says after each change that it is made.

python writer.py verbs BASE SEED FROM [KILLED_AT]   random verbs, endlessly, from the FROMth on; at the KILLED_ATth it
                                                    kills itself when the vectors are written and the rest is not
python writer.py insert BASE FIRST COUNT            so many facts, one by one
python writer.py compact BASE WHERE 0               writes the vectors anew, and kills itself on the way:
                                                    when they are written, when they count, when the old ones are gone
python writer.py often BASE 0 COUNT                 does so that often, and lives
"""

import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[3]))

from made_entries import MadeUp, WidthsAlone, a_fact, do, verbs

from corrigenda import KnowledgeBase
from corrigenda.knowledge import stored, vectors


def say(text: object) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def kill(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    what, path, first, count, *more = sys.argv[1:]
    lm = WidthsAlone()
    say("ready")
    sys.stdin.readline()  # two of them start at once
    kb = KnowledgeBase.open(path)
    if what == "insert":
        for number in range(int(first), int(first) + int(count)):
            kb.insert([a_fact(number)], lm, MadeUp())
            say(number)
        return
    if what == "often":
        for number in range(int(count)):
            kb.compact()
            say(number)
        return
    if what == "compact":
        where: dict[str, tuple[object, str]] = {
            "written": (stored.VectorFile, "append"),
            "counted": (stored.StoredEntries, "forget_others"),
        }
        with mock.patch.object(*where[first], kill) if first in where else nullcontext():  # type: ignore[arg-type]
            kb.compact()
        kill()
    for number, (verb, fact, _) in enumerate(verbs(int(first))):
        if number < int(count):
            continue
        if more and number >= int(more[0]) and verb == "insert":
            with mock.patch.object(vectors.os, "fsync", kill):
                do(kb, verb, fact, lm)
        do(kb, verb, fact, lm)
        say(number)


if __name__ == "__main__":
    main()
