"""What a process does that writes into a knowledge base, and says after each change that it is made."""

import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

from made_entries import MadeUp, WidthsAlone, a_fact, do
from made_entries import verbs as all_verbs

from corrigenda import KnowledgeBase
from corrigenda.knowledge import stored

LM = WidthsAlone()


def work(told: Connection, path: Path, what: str, *arguments: Any) -> None:
    """Does what one of the functions below does, after a word."""
    told.send("ready")
    told.recv()  # two of them start at once
    with KnowledgeBase.open(path) as kb:
        globals()[what](kb, told, *arguments)


def kill(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def insert(kb: KnowledgeBase, told: Connection, first: int, count: int) -> None:
    """So many facts, one by one."""
    for number in range(first, first + count):
        kb.insert([a_fact(number)], LM, MadeUp())
        told.send(number)


def often(kb: KnowledgeBase, told: Connection) -> None:
    """Gives room back, again and again, until nobody listens."""
    while not told.poll():
        kb.compact()


def verbs(kb: KnowledgeBase, told: Connection, seed: int, first: int, killed_at: int | None) -> None:
    """Random verbs, endlessly, from the FIRSTth on.

    At the KILLED_ATth, or the first insertion after it, it is gone when the facts are written and the entries are not.
    """
    for number, (verb, fact, _) in enumerate(all_verbs(seed)):
        if number < first:
            continue
        if killed_at is not None and number >= killed_at and verb == "insert":
            with mock.patch.object(stored.StoredEntries, "write", kill):
                do(kb, verb, fact, LM)
        do(kb, verb, fact, LM)
        told.send(number)
