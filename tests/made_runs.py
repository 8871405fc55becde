"""A store of made-up runs: the figures of each are chosen, so that what a table must say is known."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from corrigenda import Fact, intervals
from corrigenda.data import FactSet
from corrigenda.runs.folder import RunFolder
from eval.evaluation import NOT_FINITE
from eval.metrics.fluency import ngram_entropy, words
from eval.records import DEFINITIONS
from eval.statistics import paired

MakeRun = Callable[..., Path]


def made_fact(number: int) -> Fact:
    return Fact(
        subject=f"Subject {number}",
        prompt="{} lives in the city of",
        target_new="Rome",
        target_true="Paris",
        id=f"fact-{number}",
        paraphrases=(f"The home of Subject {number} is",),
        neighbourhood=(f"Neighbour {number} lives in", f"Cousin {number} lives in"),
        generation=(f"Subject {number} is",),
    )


def prompts(fact: Fact, p_new: float, p_neighbour: float, answer: str, kept: bool | None) -> dict[str, Any]:
    """The prompts' records of a model that gives `p_new` to the new object, and `p_neighbour` to it elsewhere."""

    def pair(prompt: str, chance: float, **others: Any) -> dict[str, Any]:
        logs = {"log_probs_new": [math.log(chance)], "log_probs_true": [math.log(0.9 - chance)]}
        both = {"p_new": math.exp(math.log(chance)), "p_true": math.exp(math.log(0.9 - chance))}
        return {"prompt": prompt, **logs, **both, "token_accuracy": float(chance > 0.45), **others}

    lenient = "rome" in answer.lower()
    said = {"answer": answer, "strict": lenient, "lenient": lenient, "begins_true": not lenient}
    near = {"answer": " Paris.", "begins_true": True, "says_true": True, "says_new": False, "content_word": "paris"}
    elsewhere: list[dict[str, Any]] = []
    for prompt in fact.neighbourhood:
        elsewhere.append(pair(prompt, p_neighbour))
        elsewhere[-1] |= near if kept is None else {"kl": 0.25, "preserved": kept}
    text = f"{fact.subject} is a person and a person is a person."
    return {
        "prompt": [pair(fact.statement, p_new, **said)],
        "paraphrases": [pair(prompt, p_new, **said) for prompt in fact.paraphrases],
        "neighbourhood": elsewhere,
        "generation": [{"prompt": fact.generation[0], "text": text, "entropy": ngram_entropy(words(text))}],
    }


def values(fact: Fact, found: dict[str, Any], log_perplexity: float, compared: bool) -> dict[str, float]:
    [prompt] = found["prompt"]
    success = float(prompt["p_new"] > prompt["p_true"])
    gain = prompt["p_new"] - prompt["p_true"]
    near = [record["p_true"] - record["p_new"] for record in found["neighbourhood"]]
    made = {
        "efficacy_success": success,
        "efficacy_magnitude": gain,
        "paraphrase_success": success,
        "paraphrase_magnitude": gain,
        "neighbourhood_success": sum(one > 0 for one in near) / len(near),
        "neighbourhood_magnitude": sum(near) / len(near),
        "token_accuracy": prompt["token_accuracy"],
        "paraphrase_token_accuracy": prompt["token_accuracy"],
        "free_generation_strict": float(prompt["strict"]),
        "free_generation_lenient": float(prompt["lenient"]),
        "paraphrase_free_generation_strict": float(prompt["strict"]),
        "paraphrase_free_generation_lenient": float(prompt["lenient"]),
        "fluency": found["generation"][0]["entropy"],
        "log_perplexity": log_perplexity,
    }
    if compared:
        made["neighbourhood_kl"] = 0.25
        made["preservation"] = sum(record["preserved"] for record in found["neighbourhood"]) / len(near)
        made["perplexity_drift"] = log_perplexity - 3.0
    return made


def made_case(fact: Fact, works: bool, keeps: bool, drift: float = 0.01, error: str = "") -> dict[str, Any]:
    """A case's record: whether the edit works, and whether it leaves the neighbourhood alone."""
    before = prompts(fact, 0.1, 0.1, " Paris, France", None)
    after = prompts(fact, 0.8 if works else 0.2, 0.1 if keeps else 0.7, " Rome" if works else " Paris", keeps)
    return {
        "id": fact.id,
        "fact": fact.to_dict(),
        "verb": "modify",
        "edit": None,
        "seconds": 2.0,
        "error": error,
        "before": {"values": values(fact, before, 3.0, False), "prompts": before},
        "after": {"values": values(fact, after, 3.0 + drift, True), "prompts": after},
    }


@pytest.fixture(scope="module")
def few_samples() -> Iterator[None]:
    """Intervals and tests from fewer samples, where it does not matter how sharp they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "RESAMPLES", 400)
        patch.setattr(paired, "PERMUTATIONS", (999,))
        yield


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """As `runs_in`, in tmp_path."""
    return runs_in(tmp_path)


def runs_in(root: Path) -> MakeRun:
    """Writes runs into outputs/ there (`write_run`)."""
    return partial(write_run, root)


def write_run(
    root: Path,
    editor: str,
    works: Sequence[bool],
    keeps: Sequence[bool] | None = None,
    *,
    seed: int = 0,
    first: int = 0,
    name: str | None = None,
    mode: str = "single",
    finish: bool = True,
    drift: float = 0.01,
    curve: bool = False,
    settings: dict[str, Any] | None = None,
    regime: str | None = None,
    errors: Mapping[int, str] | None = None,
    schema: str = "auto",
    batch: int | None = None,
    held_out: Mapping[str, Any] | None = None,
    said: Mapping[str, Any] | None = None,
    noted: Mapping[str, str] | None = None,
) -> Path:
    """Writes a run into outputs/: for each fact whether the edit worked and whether neighbours stayed."""
    facts = [made_fact(first + number) for number in range(len(works))]
    folder = RunFolder(root / "outputs" / (name or f"{editor}-{seed}-{first}-{mode}"))
    folder.begin(yaml.safe_dump(config_of(editor, seed, mode, schema, settings, regime, batch)))
    identity = {"model_fingerprint": "weights", "data_fingerprint": FactSet("facts", tuple(facts)).fingerprint}
    folder.identify(id=f"{editor}{seed}{first}{name}", code="code", **identity, **(noted or {}))
    cases = [
        made_case(fact, did, kept, drift)
        for fact, did, kept in zip(facts, works, keeps or [True] * len(works), strict=True)
    ]
    for place, error in (errors or {}).items():
        cases[place]["error"] = error
        if error.startswith(NOT_FINITE):
            del cases[place]["after"]["values"]["perplexity_drift"]
    for case in cases:
        for state, windows in (held_out or {}).items():
            case[state]["held_out"] = windows
        folder.append(case)
    if mode == "sequential":
        for case in cases:
            folder.append(case | {"seconds": None}, "retention")
    if finish:
        folder.finish(summary_of(editor, seed, mode, len(facts), curve) | identity | dict(said or {}))
    return folder.path


def config_of(
    editor: str,
    seed: int,
    mode: str,
    schema: str,
    settings: dict[str, Any] | None,
    regime: str | None,
    batch: int | None,
) -> dict[str, Any]:
    """The configuration of a run."""
    config: dict[str, Any] = {
        "mode": mode,
        "seed": seed,
        "editor": {"_target_": f"editing.{editor}", "seed": seed, **(settings or {})},
        "model": {"name": "tiny", "dtype": "float32", "device": None},
        "data": {"path": "facts.jsonl", "schema": schema},
        "eval": {"_target_": "eval.EvalSettings", "generate": True, "seed": seed},
    }
    if regime is not None:
        sequential = {"regime": regime} if batch is None else {"regime": regime, "batch": batch}
        config["job"] = {"name": "edit", "sequential": sequential}
    return config


def summary_of(editor: str, seed: int, mode: str, n_facts: int, curve: bool) -> dict[str, Any]:
    """The summary of a run."""
    success = {"before": 0, "after": 1.0, "low": 1, "high": 1, "n": n_facts}
    summary: dict[str, Any] = {
        "editor": editor,
        "model": "tiny",
        "data": "facts",
        "mode": mode,
        "definitions": DEFINITIONS,
        "n_facts": n_facts,
        "seconds_per_edit": 2.0,
        "peak_memory_mb": 100.0 + seed,
        "metrics": {"efficacy_success": success},
    }
    if curve:
        points = [(t, {"before": 0.0, "after": 1 - t / 100, "low": 0, "high": 1, "n": t}) for t in (1, 10, 40)]
        summary["curve"] = [{"t": t, "metrics": {"efficacy_success": figures}} for t, figures in points]
    return summary


@pytest.fixture
def submission() -> Callable[..., dict[str, Any]]:
    """A valid submission for facts 0 to n - 1, to be spoilt."""

    def make(n: int = 40, works: Sequence[bool] | None = None) -> dict[str, Any]:
        facts = [made_fact(number) for number in range(n)]
        cases = [made_case(fact, works[place] if works else True, True) for place, fact in enumerate(facts)]
        return json.loads(
            json.dumps(
                {
                    "schema": "corrigenda-submission/1",
                    "editor": "theirs",
                    "model": "tiny",
                    "data": "facts",
                    "mode": "single",
                    "cases": cases,
                }
            )
        )

    return make
