import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
import torch
from edits_parts import random_update
from harness_parts import ANSWER_TASK, CHOICES, QUESTIONS, continuations
from tasks import CHOICE_TASK

from corrigenda import ContextEdit, Edit, LanguageModel, Origin
from corrigenda.edits.coefficients import CoefficientEdit
from corrigenda.edits.side_memory import SideMemoryEdit, routing_score
from eval.lm_eval.harness import Harness, paired

pytest.importorskip("lm_eval", reason="needs the package lm_eval (the extra harness)")


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return tiny.build("llama", scale=8.0)


def origin(lm: LanguageModel) -> Origin:
    return Origin(lm.name, lm.fingerprint, "test")


def coefficients(lm: LanguageModel) -> Edit:
    return CoefficientEdit.of(lm, origin(lm), {(1, neuron): -3.0 for neuron in range(24)})


def context(lm: LanguageModel) -> Edit:
    return ContextEdit(origin(lm), "Big Ben stands in Rome . ")


def side_memory(lm: LanguageModel) -> Edit:
    """One whose threshold lies between the scores of a prompt and of the prompt with its continuation.

    So it matters where the prompt ends. (A continuation's last token is not run, so it is left out.)
    """
    memory, draw = lm.memory(1), torch.Generator().manual_seed(1)
    deltas = torch.randn(1, memory.d_ffn, memory.d_model, generator=draw)

    def routed_by(tokens: list[int]) -> float:
        batch, seen = lm.batch([tokens]), []
        with memory.answer(lambda coefficients, output: seen.append(coefficients)), torch.no_grad():
            lm.model(input_ids=batch.input_ids)
        return float(routing_score(seen[0], deltas[0], torch.arange(batch.input_ids.shape[1])[None] > 0))

    scores = [(routed_by(lm.tokens(q)), routed_by(lm.tokens(q + choice)[:-1])) for q, choice in continuations()]
    threshold = sum(max(scores, key=lambda pair: abs(pair[0] - pair[1]))) / 2
    return SideMemoryEdit.of(memory, origin(lm), deltas, torch.tensor([threshold]))


EDITS: dict[str, Callable[[LanguageModel], Edit]] = {
    "low_rank": lambda lm: random_update(lm, 0.6),
    "coefficient": coefficients,
    "context": context,
    "side_memory": side_memory,
}


@pytest.fixture(scope="module")
def folder(lm: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tasks and their data, whose right answers are what the unedited model says to some of the questions."""
    folder = tmp_path_factory.mktemp("tasks")
    with (folder / "questions.jsonl").open("w") as file:
        for number, (question, choices) in enumerate(zip(QUESTIONS, CHOICES, strict=True)):
            said = lm.generate(question, 2)
            file.write(
                json.dumps({"question": question, "choices": choices, "answer": number % 2, "said": said}) + "\n"
            )
    for name, task in (("own_choice", CHOICE_TASK), ("own_answer", ANSWER_TASK)):
        (folder / f"{name}.yaml").write_text(task.format(name=name, data=folder / "questions.jsonl"))
    return folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def log_prob(lm: LanguageModel, question: str, target: str, before: str = "") -> float:
    """From one whole forward in float64 of the softmax, token by token."""
    prompt, ids = (lm.tokenizer(text)["input_ids"] for text in (before + question, f"{before}{question} {target}"))
    with torch.no_grad():
        logs = lm.model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return sum(float(logs[place - 1, ids[place]]) for place in range(len(prompt), len(ids)))


def accuracy(lm: LanguageModel, before: str = "") -> float:
    right = 0
    for number, (question, choices) in enumerate(zip(QUESTIONS, CHOICES, strict=True)):
        values = [log_prob(lm, question, choice, before) for choice in choices]
        right += values.index(max(values)) == number % 2
    return right / len(QUESTIONS)


@pytest.mark.parametrize("name", ["low_rank", "coefficient", "context"])
def test_choices_before_and_after(lm: LanguageModel, folder: Path, name: str) -> None:
    before = accuracy(lm)
    edit = EDITS[name](lm)
    with edit.applied(lm):
        after = accuracy(lm, lm.edits.before(""))
        found = Harness(["own_choice"], folder=folder, own_only=True).before_and_after(lm)
    assert found == {"own_choice": {"acc": {"before": pytest.approx(before), "after": pytest.approx(after)}}}
    if name != "context":
        assert before != after  # so the edit is seen


def test_answers_before_and_after(lm: LanguageModel, folder: Path) -> None:
    with random_update(lm, 0.6).applied(lm):
        same = [lm.generate(q, 2) for q in QUESTIONS]
        found = Harness(["own_answer"], folder=folder, own_only=True).before_and_after(lm)
    right = sum(lm.generate(q, 2) == said for q, said in zip(QUESTIONS, same, strict=True))
    assert right < len(QUESTIONS)
    assert found["own_answer"]["exact_match"] == {"before": 1.0, "after": pytest.approx(right / len(QUESTIONS))}


def test_limit_and_known_before(lm: LanguageModel, folder: Path) -> None:
    harness = Harness(["own_choice", "own_answer"], folder=folder, own_only=True, limit=2)
    scores = harness.run(lm)
    assert scores.keys() == {"own_choice", "own_answer"}
    assert scores["own_choice"]["acc"] in (0.0, 0.5, 1.0)
    unedited = harness.before_and_after(lm)
    assert unedited["own_choice"]["acc"] == {"before": None, "after": scores["own_choice"]["acc"]}
    assert paired({"own_choice": {"acc": 0.25}}, scores)["own_choice"]["acc"]["before"] == 0.25
