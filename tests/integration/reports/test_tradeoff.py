import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tiny
import torch
from scripts import script

from corrigenda import CodebookEdit, Fact, LanguageModel
from corrigenda.moments.text import Text
from editing import Grace, Unrelated, Wise
from eval import EvalSettings

KEYS = (
    *("token_accuracy", "free_generation_strict"),
    *("paraphrase_token_accuracy", "paraphrase_free_generation_strict"),
)
SUBJECTS = ["Thomas", "Danielle", "Ben", "the river", "the tower", "the piano", "Rome", "Berlin"]
GRIDS = {
    "grace": {"relative_radius": (0.1, 2.0)},
    "wise_whitened": {"weight": (0.01,), "margin": (0.6, 0.9)},
    "wise_paper": {"lr": (0.05,), "margin_scale": (0.1,)},
}


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script, with a tiny model, small editors, few trials and few points."""
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))
    module = script("tradeoff", "docs/reports", monkeypatch)
    memories = sys.modules["tradeoff_memories"]
    monkeypatch.setattr(module, "load", lambda _name: tiny.build("llama"))
    monkeypatch.setattr(module, "GRIDS", GRIDS)
    monkeypatch.setattr(module, "SCALES", dict.fromkeys(GRIDS, (0.5, 1.0, 100.0)))
    monkeypatch.setattr(memories, "WINDOWS", EvalSettings(perplexity_windows=6, perplexity_window=16))
    plain = memories.configured

    def small(name: str, unrelated: Unrelated, n: int, settings: dict[str, float]) -> Any:
        text = Text(tokens=256, length=8)
        editor = plain(name, Unrelated(Text(tokens=64, length=8), prompts=False), n, {})
        more: dict[str, Any] = {"layer": 2, "steps": 3, "text": text}
        if isinstance(editor, Wise):
            more |= {"prefixes": 0, "thinned": 0, "unrelated_batch": 4, "hard_negatives": 2, "max_norm": None}
        return type(editor)(**{**vars(editor), **more, **settings})

    monkeypatch.setattr(memories, "configured", small)
    return module


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """Small files of facts, and everything that is written in one folder."""

    def record(subject: str, number: int, answer: str) -> dict[str, Any]:
        return {
            "subject": subject,
            "src": f"What is the city of {subject}?",
            "rephrase": f"In which city is {subject}?",
            "alt": answer if number % 2 else "Berlin",
            "answers": ["Paris"],
            "loc": f"nq question: who made number {number}",
            "loc_ans": "Thomas",
        }

    # With one answer for all, GRACE's balls only grow.
    for name, answer in (("facts", "Rome piano"), ("fresh", "Berlin")):
        records = [record(subject, number, answer) for number, subject in enumerate(SUBJECTS)]
        (tmp_path / f"{name}.json").write_text(json.dumps(records))
    return [
        *("--facts", str(tmp_path / "facts.json"), "--offset", "0", "--count", "3"),
        *("--fresh", str(tmp_path / "fresh.json"), "--t", "5", "--work", str(tmp_path / "work")),
        *("--docs", str(tmp_path)),
    ]


def test_all_steps(report: ModuleType, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report.REPORT.main(["collect", *arguments])
    page = ["page", "--docs", str(tmp_path)]
    report.REPORT.main(page)
    kept = json.loads((tmp_path / "data" / "tradeoff.json").read_text())
    data = kept["figures"]
    assert set(kept["runs"]) == {f"{step} {name}" for step in ("tune", "collect") for name in GRIDS}
    assert all(len(entries) == 1 for entries in kept["runs"].values())
    for name, grid in GRIDS.items():
        tuned, collected = data["tune"]["editors"][name], data["collect"]["editors"][name]
        trials = tuned["trials"]
        assert len(trials) == len(next(iter(grid.values()))) * (2 if name == "wise_whitened" else 1)
        assert tuned["chosen"] in [trial["settings"] for trial in trials]
        assert collected["settings"] == tuned["chosen"]
        assert [point["scale"] for point in collected["points"]] == [0.5, 1.0, 100.0]
        for point in collected["points"]:
            assert {key: len(values) for key, values in point["figures"].items()} == dict.fromkeys(KEYS, 5)
            assert len(point["answered"]["locality"]) == 5
            assert len(point["answered"]["same_form"]) == 3
            assert len(point["answered"]["windows"]) == 6
    # A wider ball answers more; a higher threshold less, and in the end nothing: then the model is as before.
    for kind in report.KINDS:
        few, _, many = (sum(p["answered"][kind]) for p in data["collect"]["editors"]["grace"]["points"])
        assert few <= many
        for name in ("wise_whitened", "wise_paper"):
            points = data["collect"]["editors"][name]["points"]
            assert sum(points[0]["answered"][kind]) >= sum(points[1]["answered"][kind])
            assert not any(points[2]["answered"][kind])
            assert points[2]["figures"] == data["collect"]["before"]
    assert all(data["collect"]["editors"]["grace"]["points"][2]["answered"]["windows"])
    text = (tmp_path / "tradeoff.md").read_text()
    chosen = data["tune"]["editors"]["grace"]["chosen"]["relative_radius"]
    assert f"| grace | `relative_radius={chosen:g}` |" in text
    assert "the first 5 of fresh.json; other subjects: the 3 after them" in text
    assert "facts 1 to 3 of facts.json; other subjects: the 3 after them" in text
    assert (tmp_path / "figures" / "tradeoff.png").is_file()
    # Given again, nothing is learned, measured or noted anew, also not of trials that --anew forgets; nor by the page.
    monkeypatch.setattr(report.Shared, "learned", None)
    report.REPORT.main(["collect", *arguments])
    report.REPORT.main(["collect", "--anew", *arguments])
    again = json.loads((tmp_path / "data" / "tradeoff.json").read_text())
    assert (again["figures"], again["runs"], again["digest"]) == (data, kept["runs"], kept["digest"])
    monkeypatch.setattr(report, "load", None)
    report.REPORT.main(page)
    assert (tmp_path / "tradeoff.md").read_text() == text


def test_values_are_learned_once_and_are_the_same(lm: LanguageModel, report: ModuleType) -> None:
    facts = [Fact(subject, "{} is in the city of", "Rome" if n % 3 else "Berlin") for n, subject in enumerate(SUBJECTS)]
    remembered: dict[str, Any] = {}
    learned = []
    plain = Grace._learn

    def counted(self: Grace, *rest: Any) -> Any:
        learned.append(1)
        return plain(self, *rest)

    for radius in (0.01, 0.3):
        settings = {"layer": 2, "radius": radius, "steps": 4}
        editor = sys.modules["tradeoff_memories"].RememberingGrace(**settings)
        object.__setattr__(editor, "values", remembered)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Grace, "_learn", counted)
            found = editor.edit(lm, facts)
        expected = Grace(**settings).edit(lm, facts)
        assert found.origin.settings == expected.origin.settings
        for name in ("keys", "values", "radii"):
            assert torch.equal(getattr(found, name), getattr(expected, name))
        if radius == 0.01:
            assert len(learned) == len(facts)
    assert len(learned) < 2 * len(facts)


def test_which_prompts_are_answered(report: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: the balls of a codebook, prompts in several batches."""
    lm: LanguageModel = tiny.build("llama")
    prompts = [lm.tokens(f"{subject} is in") for subject in SUBJECTS]
    edit = Grace(layer=2, radius=1e-4, steps=1).edit(
        lm, [Fact("Ben", "{} is in", "Rome"), Fact("Rome", "{} is in", "Ben")]
    )
    assert isinstance(edit, CodebookEdit)
    memories = sys.modules["tradeoff_memories"]
    monkeypatch.setattr(memories, "ROWS", 3)
    assert memories.answered(lm, edit, prompts) == [subject in ("Ben", "Rome") for subject in SUBJECTS]
