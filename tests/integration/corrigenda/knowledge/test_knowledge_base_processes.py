import itertools
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from made_entries import LAYERS, MadeUp, WidthsAlone, a_fact, same, verbs

from corrigenda import Fact, KnowledgeBase
from corrigenda.knowledge.entries import Entry

WRITER = Path(__file__).with_name("writer.py")
WIDTHS = WidthsAlone()


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(WRITER), *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


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
    for turn in range(4):
        at = () if turn % 2 else (done + draw.randrange(1, 8),)
        process = start("verbs", path, seed, done, *at)
        go(process)
        assert process.stdout is not None
        if not at:
            said = [process.stdout.readline() for _ in range(draw.randrange(0, 8))]  # it is at work by then
            time.sleep(draw.random() * 0.02)
            process.send_signal(signal.SIGKILL)
            said += process.stdout.readlines()
        else:
            said = process.stdout.readlines()
        assert process.wait(60) == -signal.SIGKILL
        made = done + sum(line.endswith("\n") for line in said)
        with KnowledgeBase.open(path) as kb:
            assert kb.facts in (state(seed, made), state(seed, made + 1))
            if at:
                assert kb.facts == state(seed, made)
            require_whole(kb)
            done = made if kb.facts == state(seed, made) else made + 1
    assert done > 4


def test_two_processes_make_one_base_and_write_it_at_once(tmp_path: Path) -> None:
    path = tmp_path / "facts.kb"
    processes = [start("insert", path, first, 40) for first in (0, 100)]
    for process in processes:
        go(process)
    looked = 0
    while any(process.poll() is None for process in processes):
        if path.exists():
            with KnowledgeBase.open(path) as kb:
                require_whole(kb)  # whatever is there at this moment
            looked += 1
    assert [process.returncode for process in processes] == [0, 0]
    assert looked
    with KnowledgeBase.open(path) as kb:
        assert {fact.id for fact in kb.facts} == {
            f"fact-{number}" for first in (0, 100) for number in range(first, first + 40)
        }
        require_whole(kb)


@pytest.mark.parametrize("where", ["written", "counted", "gone"])
def test_a_kill_while_vectors_are_written_anew(tmp_path: Path, where: str) -> None:
    path = tmp_path / "facts.kb"
    with KnowledgeBase.open(path) as kb:
        kb.insert([a_fact(number) for number in range(6)], WIDTHS, MadeUp())
        for number in (0, 2, 3):
            kb.delete(f"fact-{number}")
        facts = kb.facts
    process = start("compact", path, where, 0)
    go(process)
    assert process.wait(60) == -signal.SIGKILL
    with KnowledgeBase.open(path) as kb:
        assert kb.facts == facts
        require_whole(kb)
        kb.insert([a_fact(7)], WIDTHS, MadeUp())
        kb.delete("fact-1")
        kb.compact()
        require_whole(kb)
        [vectors] = tmp_path.glob("facts.kb.vectors*")
        assert vectors.stat().st_size == 32 + 3 * len(LAYERS) * (48 + 32) * 4


def test_vectors_are_written_anew_while_others_read_and_write(tmp_path: Path) -> None:
    path = tmp_path / "facts.kb"
    with KnowledgeBase.open(path) as kb:
        kb.insert([a_fact(number) for number in range(20)], WIDTHS, MadeUp())
        processes = [start("often", path, 0, 60), start("insert", path, 100, 40)]
        for process in processes:
            go(process)
        for number in itertools.cycle(range(20)):  # each time something is of no use any more
            with KnowledgeBase.open(path) as other:
                other.update(a_fact(number, target=f"Rome {time.monotonic()}"), WIDTHS, MadeUp())
                require_whole(other)
            require_whole(kb)
            if all(process.poll() is not None for process in processes):
                break
        assert [process.returncode for process in processes] == [0, 0]
        assert len(kb) == 60
        require_whole(kb)
        assert [*tmp_path.glob("facts.kb.vectors.*")]


def test_a_hundred_thousand_entries_open_at_once(tmp_path: Path) -> None:
    path, small = tmp_path / "facts.kb", WidthsAlone(4, 4)
    with KnowledgeBase.open(path) as kb:
        empty = _seconds_of_an_insert(kb, small, 200_000)
        kb.insert([a_fact(number) for number in range(50_000)], small, _the_same)  # type: ignore[arg-type]
        full = _seconds_of_an_insert(kb, small, 300_000)
    begin = time.perf_counter()
    with KnowledgeBase.open(path) as kb:
        assert len(kb.find(subject="Tower 40000")) == 1
        assert time.perf_counter() - begin < 1
        assert len(kb.entries(small, [a_fact(40_000)])) == 2
    # Ten inserts by their median; what grows with the entries would be tens of thousands of times as much.
    assert full < 10 * empty


def _the_same(lm: WidthsAlone, facts: Sequence[Fact]) -> list[Entry]:
    """A quick solver."""
    vector = torch.ones(4)
    return [Entry(fact.id, layer, vector, vector, lm.fingerprint) for fact in facts for layer in LAYERS]


def _seconds_of_an_insert(kb: KnowledgeBase, lm: WidthsAlone, first: int) -> float:
    times = []
    for number in range(first, first + 15):
        begin = time.perf_counter()
        kb.insert([a_fact(number)], lm, MadeUp())
        times.append(time.perf_counter() - begin)
    return sorted(times)[len(times) // 2]


def test_two_in_one_process_see_what_the_other_writes(tmp_path: Path) -> None:
    path = tmp_path / "facts.kb"
    with KnowledgeBase.open(path) as one, KnowledgeBase.open(path) as other:
        for number in range(2):
            one.insert([a_fact(2 * number)], WIDTHS, MadeUp())
            other.insert([a_fact(2 * number + 1)], WIDTHS, MadeUp())
            require_whole(one)
            require_whole(other)
        assert one.facts == other.facts
