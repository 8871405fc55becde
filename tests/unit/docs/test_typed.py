"""Sentences that are typed by hand, or that a template says of every model, against the data."""

import importlib
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pages
import pytest
from leaderboard_tables import LEARNED, SMALLEST
from safetensors import safe_open

from corrigenda import intervals
from editing import Memit, Rome
from eval.records import DEFINITIONS


def told(page: str) -> str:
    return " ".join((pages.DOCS / page).read_text(encoding="utf-8").split())


def test_what_the_gates_that_ship_let_pass() -> None:
    # The second is the same model as the first in float32; the fingerprints are those that docs/data has of runs.
    names = ("3232608e6a0c8b7918a2088c38f2ecf0", "08b4b3b2c7b715b873dbdf51c2ea600b")
    names += ("6c9e51163fdb6e1c6e85d053eadf5d18", "5f08655c7eabec8d5b45df00225f1677")
    recalls: list[dict[str, float]] = []
    for name in names:
        with safe_open(str(files("corrigenda.data") / "gates" / f"{name}.safetensors"), "pt") as gate:
            recalls.append(json.loads(gate.metadata()["gate"])["made"]["recall"])

    def listed(share: str) -> str:
        *first, last = (f"{100 * recall[share]:.0f}" for recall in recalls)
        return f"{', '.join(first)} and {last} %"

    assert f"{listed('1%')} pass where 1 % of the others do, and {listed('5%')} at 5 %" in told("editing.md")


def test_all_tables_are_by_the_present_definitions() -> None:
    boards = pages.read_data("leaderboard")["figures"]["view"]["boards"]
    assert {json.loads(one["measured"])["definitions"] for one in boards} == {DEFINITIONS}


def test_whose_networks_the_leaderboard_has() -> None:
    boards = pages.read_data("leaderboard")["figures"]["view"]["boards"]
    models = {one["model"] for one in boards for row in one["rows"] if row["editor"] in LEARNED and row["runs"]}
    assert models == {SMALLEST, "qwen2.5-coder-0.5b"}
    assert "How they edit 100 facts at once stands in [leaderboard.md]" in told("learned.md")


def test_over_how_much_text_rome_and_memit_take_c() -> None:
    assert Rome().tokens_per_coefficient is Memit().tokens_per_coefficient is None
    assert "20 steps (ROME) or 40 (MEMIT) and 24 tokens for each coefficient, once a layer" in told("speed.md")


def of_neurons(model: str) -> tuple[dict[str, Any], str]:
    """The digest of a model, and what the page says is to be kept in mind of it."""
    return (
        pages.read_data("neurons")["digest"]["models"][model],
        told("neurons.md").partition(f"### What to keep in mind, {model}")[2].partition("Facts by relation")[0],
    )


def test_facts_are_of_few_kinds_where_two_relations_have_most() -> None:
    for model in pages.read_data("neurons")["digest"]["models"]:
        digest, text = of_neurons(model)
        counts = sorted(digest["relations"].values())
        assert ("of few kinds" in text) == (2 * sum(counts[-2:]) > sum(counts)), model


def test_a_locator_is_better_where_it_is_told_apart() -> None:
    for model in pages.read_data("neurons")["digest"]["models"]:
        digest, text = of_neurons(model)
        suppress, _, enhance, _ = digest["effects"]["gradient top"]
        assert ("Here it is better" in text) == (max(suppress["p"], enhance["p"]) < 0.05), model


def test_a_fact_without_neurons_says_nothing_of_the_most_active_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "RESAMPLES", 20)
    facts = pages.read_data("neurons")["figures"]["models"]["qwen2.5-coder-0.5b"]["facts"]
    empty = next(fact for fact in facts if not fact["neurons"]["integrated_gradients"])
    own = [fact for fact in facts if fact["neurons"]["integrated_gradients"]][:3]
    digest = importlib.import_module("neurons").digest
    assert digest({"facts": [*own, empty]})["active"] == digest({"facts": own})["active"]


def test_what_is_said_of_neurons_follows_from_the_figures(tmp_path: Path) -> None:
    data = pages.read_data("neurons")
    [(model, digest), *_] = data["digest"]["models"].items()
    half = len(digest["counts"]) // 2
    digest["counts"], digest["effects"]["random"][0]["mean"] = [1] * half + [3] * half, -0.99
    del data["figures"]["models"][model]["facts"][2 * half :]
    [path] = importlib.import_module("neurons").REPORT.page(data, tmp_path)
    text = " ".join(path.read_text(encoding="utf-8").partition("Facts by relation")[0].split())
    assert "(median 2, 1 to 3;" in text
    assert "with located ones by -94.6 %. - Updating" in text  # random ones cost more than the most active ones


def test_a_constant_is_in_the_file_that_contributing_names() -> None:
    text = (pages.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`([A-Z_]+)` (?:of|in) `(\w+/[\w/]+\.py)`", " ".join(text.split()))
    assert len(named) > 4
    for name, path in named:
        source = (pages.ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^{name}\b.* = ", source, re.MULTILINE), (name, path)
