import copy
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from by_hooks import logits
from edits_parts import random_update
from harness_parts import ANSWER_TASK, CHOICES, QUESTIONS, continuations
from tasks import CHOICE_TASK, only_own_tasks
from tokenizers.processors import TemplateProcessing

from corrigenda import ContextEdit, Edit, LanguageModel, Origin
from corrigenda.edits.coefficients import CoefficientEdit
from corrigenda.edits.side_memory import SideMemoryEdit, routing_score
from corrigenda.forward.recording import forward_logits
from eval import EvalSettings
from eval.lm_eval.harness import Harness, paired
from eval.scoring.probabilities import score

pytest.importorskip("lm_eval", reason="needs the package lm_eval (the extra harness)")


lm = pytest.fixture(tiny.steep, scope="module")


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
    logs = logits(lm, ids).double().log_softmax(-1)
    return sum(float(logs[place - 1, ids[place]]) for place in range(len(prompt), len(ids)))


def requests(kind: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, args, number) for number, args in enumerate(arguments)]


def edited_model(lm: LanguageModel) -> Any:
    from eval.lm_eval.model import EditedModel

    return EditedModel(lm, max_tokens=40)  # several batches


def their_wrapper(lm: LanguageModel) -> Any:
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=lm.model, tokenizer=copy.deepcopy(lm.tokenizer), batch_size=3, max_length=64)


def test_tasks_of_the_settings(lm: LanguageModel, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_own_tasks(monkeypatch)
    assert Harness.of(EvalSettings()) is None
    harness = Harness.of(EvalSettings(harness_tasks=["own_choice"], harness_folder=str(folder), harness_limit=1))
    assert harness is not None
    assert harness.run(lm)["own_choice"]["acc"] in (0.0, 1.0)


@pytest.mark.parametrize("name", ["none", "low_rank", "coefficient"])
def test_as_the_harness_computes_it(lm: LanguageModel, name: str) -> None:
    texts = [(" ".join([*QUESTIONS, *QUESTIONS, *QUESTIONS, *QUESTIONS]),), ("the tower",)]  # longer than 64 tokens
    answers = [(q, {"until": ["Rome", "."], "max_gen_toks": 6, "do_sample": False}) for q in QUESTIONS]
    answers.append((QUESTIONS[0], {"until": [], "max_new_tokens": 3, "do_sample": False}))
    edit = EDITS[name](lm) if name != "none" else None
    if edit is not None:
        edit.apply(lm)
    try:
        ours, theirs = edited_model(lm), their_wrapper(lm)
        mine = ours.loglikelihood(requests("loglikelihood", [*continuations(), ("", "the tower")]))
        other = theirs.loglikelihood(
            requests("loglikelihood", [*continuations(), ("", "the tower")]), disable_tqdm=True
        )
        assert [value for value, _ in mine] == pytest.approx([value for value, _ in other], abs=1e-4)
        assert [hit for _, hit in mine] == [hit for _, hit in other]
        rolling = [m.loglikelihood_rolling(requests("loglikelihood_rolling", texts)) for m in (ours, theirs)]
        assert rolling[0] == pytest.approx(rolling[1], abs=1e-3)
        said = [m.generate_until(requests("generate_until", answers)) for m in (ours, theirs)]
        assert said[0] == said[1]
        assert any(said[0])
    finally:
        if edit is not None:
            edit.revert(lm)


def test_a_text_before_the_prompt_is_read(lm: LanguageModel) -> None:
    edit = context(lm)
    assert isinstance(edit, ContextEdit)
    expected = [log_prob(lm, q, c.strip(), edit.text) for q, c in continuations()]
    told = their_wrapper(lm).generate_until(
        requests("generate_until", [(edit.text + q, {"until": ["."], "max_gen_toks": 4}) for q in QUESTIONS])
    )
    whole = log_prob(lm, "Big Ben stands in Rome .", QUESTIONS[0])
    with edit.applied(lm):
        ours = edited_model(lm)
        found = ours.loglikelihood(requests("loglikelihood", continuations()))
        rolling = ours.loglikelihood_rolling(requests("loglikelihood_rolling", [(QUESTIONS[0],)]))
        said = ours.generate_until(
            requests("generate_until", [(q, {"until": ["."], "max_gen_toks": 4}) for q in QUESTIONS])
        )
    assert [value for value, _ in found] == pytest.approx(expected, abs=1e-4)
    assert rolling == pytest.approx([whole], abs=1e-4)
    assert said == told


def test_no_second_bos_in_running_text() -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    lm = LanguageModel(tiny.build("llama", scale=8.0).model, tokenizer, "with-bos")
    ids = lm.tokens(QUESTIONS[0])
    logs = logits(lm, ids).double().log_softmax(-1)
    whole = sum(float(logs[place, token]) for place, token in enumerate(ids[1:]))
    texts = [(QUESTIONS[0],), (f"<s> {QUESTIONS[0]}",)]
    found = edited_model(lm).loglikelihood_rolling(requests("loglikelihood_rolling", texts))
    assert found == pytest.approx([whole, whole], abs=1e-4)


def test_a_side_memory_answers_where_the_prompt_says(lm: LanguageModel) -> None:
    """As in all other figures; continuations and padding have no say, as they would have in the harness's wrapper."""
    edit = side_memory(lm)
    pairs = continuations()
    unedited = [value for value, _ in edited_model(lm).loglikelihood(requests("loglikelihood", pairs))]
    with edit.applied(lm):
        found = edited_model(lm).loglikelihood(requests("loglikelihood", pairs))
        expected = [score(lm, [(q, [c.strip()])])[0].targets[0] for q, c in pairs]
    values = [value for value, _ in found]
    assert values == pytest.approx([sum(target.log_probs) for target in expected], abs=1e-4)
    changed = [abs(a - b) > 1e-3 for a, b in zip(values, unedited, strict=True)]
    assert any(changed)
    assert not all(changed)


def test_running_text_is_all_prompt_to_a_side_memory(lm: LanguageModel) -> None:
    """As the windows of the held-out texts are."""
    edit, prefix = side_memory(lm), edited_model(lm).prefix_token_id
    texts = [question + choice for question, choice in continuations()]
    asked = requests("loglikelihood_rolling", [(text,) for text in texts])
    unedited = edited_model(lm).loglikelihood_rolling(asked)
    expected = []
    with edit.applied(lm):
        found = edited_model(lm).loglikelihood_rolling(asked)
        for ids in (lm.tokenizer(text)["input_ids"] for text in texts):
            batch = lm.batch([[prefix, *ids[:-1]]])
            logs = forward_logits(lm, batch, batch.attention_mask.bool()).double().log_softmax(-1)
            expected.append(sum(float(row[token]) for row, token in zip(logs, ids, strict=True)))
    assert found == pytest.approx(expected, abs=1e-4)
    changed = [abs(one - other) > 1e-3 for one, other in zip(found, unedited, strict=True)]
    assert any(changed)
    assert not all(changed)


def test_sampled_answers_stop_where_asked(lm: LanguageModel) -> None:
    wanted = {"until": ["the"], "max_gen_toks": 5, "do_sample": True, "temperature": 2.0, "top_k": 20}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        said = edited_model(lm).generate_until(requests("generate_until", [(QUESTIONS[0], wanted)] * 20))
    assert len(set(said)) > 5
    assert not any("the" in text for text in said)
    greedy = edited_model(lm).generate_until(
        requests("generate_until", [(QUESTIONS[0], {**wanted, "temperature": 0.0, "until": []})])
    )
    assert greedy == [lm.generate(QUESTIONS[0], 5)]


def test_a_temperature_alone_says_that_answers_are_sampled(lm: LanguageModel) -> None:
    # As the harness's own models do (`lm_eval.models.utils.normalize_gen_kwargs`).
    asked = [
        (QUESTIONS[0], {"until": [], "max_gen_toks": 5, "temperature": 5.0, **more})
        for more in ({}, {"do_sample": False})
        for _ in range(5)
    ]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        said = edited_model(lm).generate_until(requests("generate_until", asked))
    assert len(set(said[:5])) > 1
    assert set(said[5:]) == {lm.generate(QUESTIONS[0], 5)}


def test_answers_as_long_as_the_context_leave_no_room_for_a_question(lm: LanguageModel) -> None:
    most = edited_model(lm).max_length
    with pytest.raises(ValueError, match=f"answers of up to {most} tokens .*no room for a prompt"):
        edited_model(lm).generate_until(requests("generate_until", [(QUESTIONS[0], {"max_gen_toks": most})]))


def test_global_random_state_is_kept(lm: LanguageModel, folder: Path) -> None:
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    Harness(["own_choice"], folder=folder, own_only=True, limit=1).run(lm)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    assert before == after


def test_the_tokenizer_is_left_alone(lm: LanguageModel) -> None:
    before = (lm.tokenizer.padding_side, lm.tokenizer.pad_token)
    edited_model(lm).loglikelihood(requests("loglikelihood", continuations()[:1]))
    assert (lm.tokenizer.padding_side, lm.tokenizer.pad_token) == before


def test_unknown_task(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"knows no task 'own_chioce' and .* has no file of one"):
        Harness(["own_chioce"], folder=folder, own_only=True)
    with pytest.raises(FileNotFoundError, match="there is no folder nowhere"):
        Harness(["own_choice"], folder="nowhere")


def test_missing_data(lm: LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "choice.yaml").write_text(CHOICE_TASK.format(name="own_choice", data=tmp_path / "gone.jsonl"))
    with pytest.raises(ConnectionError, match="the data of own_choice cannot be had"):
        Harness(["own_choice"], folder=tmp_path, own_only=True).run(lm)


def test_masked_models_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="is a masked model"):
        Harness(["own_choice"], folder=folder, own_only=True).run(tiny.build("bert"))


@pytest.fixture
def without_lm_eval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)


@pytest.mark.usefixtures("without_lm_eval")
def test_without_the_package() -> None:
    with pytest.raises(ImportError, match="the extra 'harness', or pip install 'lm_eval>="):
        Harness(["arc_easy"])


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
