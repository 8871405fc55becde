"""Sweeps end to end on a tiny model: killed and started again, in several processes, and tuned apart from the score."""

from __future__ import annotations

import json
from pathlib import Path

import program
import pytest
import tiny
from sweep_parts import ROME, SUBJECTS, record

from corrigenda import Fact
from corrigenda.data import FactSet
from corrigenda.data.parts import part_of, require_disjoint, take_part

SUBJECTS += [f"{one} {other}" for one in ("green", *SUBJECTS[6:]) for other in SUBJECTS[:6]]
N_RUNS, N_FACTS = 3 * 2 * 2, 10


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, two data sets of ten facts, and configurations for small editors."""
    home = tmp_path_factory.mktemp("sweep")
    tiny.build("llama").save_pretrained(home / "model")
    for folder in ("editor", "data"):
        (home / "conf" / folder).mkdir(parents=True)
    (home / "conf/editor/small_rome.yaml").write_text(f"defaults: [rome]\n{ROME}")
    nested = ROME.strip().replace("\n", "\n  ")
    (home / "conf/editor/small_random.yaml").write_text(f"defaults: [random]\nlike:\n  {nested}\n")
    for place, name in enumerate(("one", "two")):
        (home / f"conf/data/{name}.yaml").write_text(f"defaults: [facts]\npath: {home / name}.jsonl\n")
        with (home / f"{name}.jsonl").open("w") as file:
            for number in range(N_FACTS):
                file.write(json.dumps(record(place * N_FACTS + number)) + "\n")
    with (home / "all.jsonl").open("w") as file:
        for number in range(10):
            file.write(json.dumps(record(number)) + "\n")
    return home


def arguments_of(home: Path, store: str, *overrides: str) -> list[str]:
    return [
        *("--config-dir", str(home / "conf"), "-m"),
        *("model=own", f"model.name={home / 'model'}", "model.device=cpu", f"store={store}"),
        *("eval.perplexity_windows=3", "eval.perplexity_window=16", "eval.max_new_tokens=4", "eval.fluency_tokens=8"),
        *overrides,
    ]


def sweep(home: Path, store: str, *overrides: str, succeeds: bool = True) -> str:
    return program.call(home, *arguments_of(home, store, *overrides), succeeds=succeeds)


def facts(*numbers: int) -> FactSet:
    return FactSet("facts", tuple(Fact.from_dict(record(number)) for number in numbers))


def test_the_parts_share_no_subject() -> None:
    made = [Fact(f"Subject {n % 300}", "{} is in", "Rome", "Paris", id=str(n)) for n in range(600)]
    whole = FactSet("many", tuple(made))
    tune, score = take_part(whole, "tune"), take_part(whole, "score")
    assert len(tune) + len(score) == 600
    assert not {fact.subject for fact in tune} & {fact.subject for fact in score}
    assert 0.13 < len(tune) / 600 < 0.27  # a fifth of 300 subjects, give or take three standard deviations
    assert part_of(Fact(" subject  7 ", "{} is", "a")) == part_of(Fact("Subject 7", "{} was", "b"))
    assert take_part(whole, "tune", limit=5, offset=2).facts == tune.facts[2:7]


def test_overlap_is_an_error() -> None:
    require_disjoint(facts(0, 1), facts(2, 3))
    with pytest.raises(ValueError, match=r"fact 'fact-1' \('Thomas'\) would be scored, but the id is among the 2"):
        require_disjoint(facts(0, 1), facts(2, 1))
    renamed = FactSet("other", (Fact("  THOMAS ", "{} was born in", "Rome", id="else"),))
    with pytest.raises(ValueError, match="the subject is among"):
        require_disjoint(facts(0, 1), renamed)


def test_parts_that_are_not_there() -> None:
    with pytest.raises(ValueError, match=r"data\.part=test: the parts are tune and score"):
        take_part(facts(0), "test")  # type: ignore[arg-type]
    part = part_of(facts(0)[0])
    with pytest.raises(ValueError, match="limit must be at least 1"):
        take_part(facts(0), part, limit=0)
    with pytest.raises(ValueError, match="has 0 of the 1 facts"):
        take_part(facts(0), "tune" if part == "score" else "score")
