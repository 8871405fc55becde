import itertools
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import program
import pytest
import torch
from made_entries import LAYERS, MadeUp, WidthsAlone, a_fact, same, verbs

from corrigenda import Fact, KnowledgeBase
from corrigenda.knowledge.entries import Entry

sys.path.insert(0, str(Path(__file__).parent))  # the processes find it there, too
import writer

WIDTHS = WidthsAlone()


def start(path: Path, what: str, *arguments: object) -> tuple[BaseProcess, Connection]:
    """A process that is ready to write."""
    here, there = program.FORKS.Pipe()
    process = program.FORKS.Process(target=writer.work, args=(there, path, what, *arguments))
    process.start()
    there.close()
    assert here.recv() == "ready"
    return process, here


def said(pipe: Connection) -> int:
    """How many changes a process said that it made, until its end."""
    for number in itertools.count():
        try:
            pipe.recv()
        except (EOFError, ConnectionError):
            return number
    raise AssertionError


def state(seed: int, n: int) -> tuple[Fact, ...]:
    """The facts after n verbs."""
    return () if n == 0 else tuple(next(itertools.islice(verbs(seed), n - 1, None))[2].values())


def require_whole(kb: KnowledgeBase) -> None:
    """Every fact has its entries, to the bit."""
    facts = kb.facts  # others may write meanwhile
    assert same(kb.entries(WIDTHS, facts), MadeUp()(WIDTHS, facts))


def test_a_kill_leaves_the_state_before_or_after_a_change(tmp_path: Path) -> None:
    path, seed, draw = tmp_path / "facts.kb", 4, random.Random(1)
    done = 0
    for at in (draw.randrange(1, 8), None, 12, None):
        process, pipe = start(path, "verbs", seed, done, None if at is None else done + at)
        pipe.send("go")
        heard = 0 if at is not None else draw.randrange(0, 7)
        for _ in range(heard):  # it is at work by then
            pipe.recv()
        if at is None:
            time.sleep(draw.random() * 0.02)
            process.kill()
        made = done + heard + said(pipe)
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        with KnowledgeBase.open(path) as kb:
            assert kb.facts in (state(seed, made), state(seed, made + 1))
            if at is not None:
                assert kb.facts == state(seed, made)
            require_whole(kb)
            done = made if kb.facts == state(seed, made) else made + 1
    assert done > 4


def test_two_processes_make_one_base_and_write_it_at_once(tmp_path: Path) -> None:
    path = tmp_path / "facts.kb"
    processes = [start(path, "insert", first, 20) for first in (0, 100)]
    for _, pipe in processes:
        pipe.send("go")
    looked = 0
    while any(process.is_alive() for process, _ in processes):
        if path.exists():
            with KnowledgeBase.open(path) as kb:
                require_whole(kb)  # whatever is there at this moment
            looked += 1
    assert [process.exitcode for process, _ in processes] == [0, 0]
    assert looked
    with KnowledgeBase.open(path) as kb:
        assert {fact.id for fact in kb.facts} == {
            f"fact-{number}" for first in (0, 100) for number in range(first, first + 20)
        }
        require_whole(kb)


def test_room_is_given_back_while_others_read_and_write(tmp_path: Path) -> None:
    path = tmp_path / "facts.kb"
    with KnowledgeBase.open(path) as kb:
        kb.insert([a_fact(number) for number in range(20)], WIDTHS, MadeUp())
        (compacting, until), (inserting, go) = start(path, "often"), start(path, "insert", 100, 20)
        until.send("go")
        go.send("go")
        for number in itertools.cycle(range(20)):  # each time something is of no use any more
            with KnowledgeBase.open(path) as other:
                other.delete(f"fact-{number}")
                other.insert([a_fact(number, target=f"Rome {time.monotonic()}")], WIDTHS, MadeUp())
                require_whole(other)
            require_whole(kb)
            if not (compacting.is_alive() and inserting.is_alive()):
                break
        until.close()  # it ends, whatever comes first
        compacting.join(60)
        assert (compacting.exitcode, inserting.exitcode) == (0, 0)
        assert len(kb) == 40
        require_whole(kb)


def test_nothing_is_read_but_what_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, small = tmp_path / "facts.kb", WidthsAlone(4, 4)
    with KnowledgeBase.open(path) as kb:
        kb.insert([a_fact(5000)], small, MadeUp())
    steps: list[None] = []
    connect = sqlite3.connect

    def counted(*arguments: Any, **named: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **named)
        connection.set_progress_handler(lambda: steps.append(None), 1)
        return connection

    def steps_of_use(number: int) -> int:
        """SQLite's steps of opening, finding a fact and its entries, and of inserting one."""
        steps.clear()
        with KnowledgeBase.open(path) as kb:
            [fact] = kb.find(subject=f"Tower {number}")
            assert len(kb.entries(small, [fact])) == len(LAYERS)
            kb.insert([a_fact(number + 10_000)], small, MadeUp())
        return len(steps)

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", counted)
        empty = steps_of_use(5000)
    with KnowledgeBase.open(path) as kb:
        kb.insert([a_fact(number) for number in range(1000)], small, _the_same)  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", counted)
        full = steps_of_use(400)
    assert empty > 100
    assert full < empty + 500  # what grows with the facts would be some thousands more


def _the_same(lm: WidthsAlone, facts: Sequence[Fact]) -> list[Entry]:
    """A quick solver."""
    vector = torch.ones(4)
    return [Entry(fact.id, layer, vector, vector, lm.fingerprint) for fact in facts for layer in LAYERS]


def test_two_in_one_process_see_what_the_other_writes(tmp_path: Path) -> None:
    path = tmp_path / "facts.kb"
    with KnowledgeBase.open(path) as one, KnowledgeBase.open(path) as other:
        for number in range(2):
            one.insert([a_fact(2 * number)], WIDTHS, MadeUp())
            other.insert([a_fact(2 * number + 1)], WIDTHS, MadeUp())
            require_whole(one)
            require_whole(other)
        assert one.facts == other.facts
