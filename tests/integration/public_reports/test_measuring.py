import dataclasses
import gzip
import json
import random
from pathlib import Path
from typing import Any

import program
import pytest
import tiny
import torch
from editors_parts import bits
from public_reports import DANIELLE, EIFFEL, log_probs, low_rank, model, pieces, rome

from corrigenda import Fact, LanguageModel
from corrigenda.data import FactSet, read_facts
from corrigenda.runs.folder import RunFolder
from eval import EditRun, EvalSettings, evaluate, measure, run_single

SHORT = EvalSettings(perplexity_windows=0, max_new_tokens=6, fluency_tokens=6)


@pytest.fixture
def lm() -> LanguageModel:
    return LanguageModel(model(), tiny.tokenizer(), "tiny")


def run_of(lm: LanguageModel, folder: Path, *facts: Fact, **more: Any) -> EditRun:
    return EditRun(lm, FactSet("some", facts), rome(), SHORT, RunFolder(folder), **more)


def test_each_fact_from_the_clean_model(lm: LanguageModel, tmp_path: Path) -> None:
    """zjunlp/EasyEdit#659, #363, #391: the weights were not put back, so that each edit and each figure "before" was of
    the model with all earlier edits."""
    clean, found = bits(lm), []
    for number, facts in enumerate(((EIFFEL, DANIELLE), (DANIELLE, EIFFEL))):
        run = run_of(lm, tmp_path / str(number), *facts)
        run_single(run)
        found.append({id_: (case.before, case.after, case.edit) for id_, case in run.cases.items()})
        assert all(torch.equal(tensor, clean[name]) for name, tensor in lm.model.state_dict().items())
    assert found[0] == found[1]


def test_a_run_on_a_model_that_is_edited(lm: LanguageModel, tmp_path: Path) -> None:
    """zjunlp/EasyEdit#643: an edit that was applied already was in the figures after, and not in those before."""
    edit = low_rank(lm, {1: 2, 2: 2})
    with edit.applied(lm), pytest.raises(ValueError, match=r"tiny has edits applied \(low_rank\): revert them"):
        run_of(lm, tmp_path, EIFFEL)
    run_single(run_of(lm, tmp_path, EIFFEL))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_without_an_edit_everything_stays(dtype: torch.dtype) -> None:
    """huggingface/transformers#25420, #31267: in half precision decoding with a cache and a forward over the whole row
    take different tokens where two are equally likely; without any edit some answers counted as changed."""
    lm, draw = LanguageModel(model().to(dtype), tiny.tokenizer(), "tiny"), random.Random(0)
    prompts = [" ".join([*draw.choices(tiny.WORDS, k=draw.randint(2, 9)), "is"]) for _ in range(120)]
    facts = [
        dataclasses.replace(EIFFEL, id=str(begin), neighbourhood=tuple(prompts[begin : begin + 10]))
        for begin in range(0, 120, 10)
    ]
    before = measure(lm, facts, SHORT)
    n_left = sum(len(one.continuations) for one in before)
    assert 0 < n_left < 120  # those that cannot be told are left out, and there are some
    for fact, old in zip(facts, before, strict=True):
        [after] = measure(lm, [fact], SHORT, [old])
        assert after.values["preservation"] == 1


def test_an_answer_that_is_shorter_than_the_target(lm: LanguageModel) -> None:
    """zjunlp/EasyEdit#467: fewer tokens than the target has were generated, and the comparison failed."""
    lm.model.lm_head.weight.data[2] *= 50  # the end token, or what is far from it
    facts = [dataclasses.replace(EIFFEL, target_new="Rome and Paris and London"), DANIELLE]
    for case in evaluate(lm, facts, SHORT).cases:
        assert not case.error
        [record] = case.after.scored("prompt")
        assert record.strict is False
        assert len(record.log_probs_new or ()) == len(tiny.tokenizer()(case.fact.target_new)["input_ids"])


@pytest.mark.parametrize(
    ("new", "true", "answer", "strict", "lenient"),
    [
        ("Rome", "Rome, Georgia", " Rome, Georgia, in the south", False, False),
        ("Rome", "Rome, Georgia", " Rome. It is not in Rome, Georgia", True, True),
        ("Rome", "Rome, Georgia", " not Rome, Georgia, but Rome", False, True),
        ("York", "New York", " New York", False, False),
        ("York", "New York", " York", True, True),
        ("New York", "York", " New York", True, True),
        ("the Beatles", "Beatles", " Beatles", True, True),
        ("東京", "東京都", "東京都です", False, False),
    ],
)
def test_a_new_answer_within_the_old_one(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, new: str, true: str, answer: str, strict: bool, lenient: bool
) -> None:
    """EleutherAI/lm-evaluation-harness#621: answers that have others in them; an unedited model, which says the old
    answer "Rome, Georgia", had said the new one "Rome"."""
    monkeypatch.setattr(lm, "text", lambda _tokens: answer)
    fact = dataclasses.replace(EIFFEL, target_new=new, target_true=true)
    [record] = measure(lm, [fact], SHORT)[0].scored("prompt")
    assert (record.strict, record.lenient) == (strict, lenient)


@pytest.mark.parametrize("name", ["train.jsonl", "train.jsonl.gz"])
def test_a_file_that_changed_since_it_was_read(name: str, tmp_path: Path) -> None:
    """huggingface/datasets#2956, #444: the old content came back from a cache."""
    found = []
    for target in ("Rome", "Berlin"):
        line = f"{json.dumps({'subject': 'Ben', 'prompt': '{} is in', 'target_new': target})}\n".encode()
        (tmp_path / name).write_bytes(gzip.compress(line) if name.endswith("gz") else line)
        found += [fact.target_new for fact in read_facts(tmp_path)]
    assert found == ["Rome", "Berlin"]


def test_the_harness_reads_what_its_own_wrapper_reads() -> None:
    """EleutherAI/lm-evaluation-harness#1455, #4012: without the beginning token Gemma's figures are noise; a space at
    the context's end belongs to the continuation."""
    harness = pytest.importorskip("lm_eval.models.huggingface", reason="needs the package lm_eval (the extra harness)")
    from lm_eval.api.instance import Instance

    from eval.lm_eval.model import EditedModel

    tokenizer = pieces("first", bos=True)
    lm = LanguageModel(model("gemma2", vocab_size=len(tokenizer)), tokenizer, "tiny")
    asked = [
        Instance("loglikelihood", {}, pair, 0)
        for pair in [("the tower is", " Rome and Paris"), ("the tower is ", "Rome"), ("the city of London :", " piano")]
    ]
    theirs = harness.HFLM(pretrained=lm.model, tokenizer=tokenizer, batch_size=1, add_bos_token=True)
    ours = EditedModel(lm).loglikelihood(asked)
    for (value, greedy), (wanted, also) in zip(ours, theirs.loglikelihood(asked), strict=True):
        assert value == pytest.approx(wanted, abs=1e-4)
        assert greedy == also
    ids = lm.tokens("the tower is Rome and Paris")
    assert ids[0] == tokenizer.bos_token_id
    assert ours[0][0] == pytest.approx(sum(log_probs(lm, ids, 4)), abs=1e-4)


class Told:
    """A tracker that notes the numbers of the cases that it is told, and stops the program at one of them."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.cases: list[int] = []
        self.stop_at = stop_at

    def case(self, number: int, record: Any) -> None:
        self.cases.append(number)
        if number == self.stop_at:
            raise KeyboardInterrupt

    def finish(self, summary: Any) -> None:
        pass


def test_a_tracker_of_a_run_that_goes_on(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """wandb/wandb#2971, allenai/tango#152: a run that was gone on with showed its later part alone."""
    lm.save_pretrained(tmp_path / "model")
    facts = [Fact(subject, "the city of {} is", "Rome", "Paris") for subject in ("Big Ben", "the tower", "the river")]
    (tmp_path / "facts.jsonl").write_text("".join(f"{json.dumps(fact.to_dict())}\n" for fact in facts))
    run = tmp_path / "run"
    common = ["model=own", f"model.name={tmp_path / 'model'}", "model.device=cpu", "data=facts", "editor=none"]
    common += [f"data.path={tmp_path / 'facts.jsonl'}", "eval=probabilities", "eval.perplexity_windows=0"]
    told = [Told(stop_at=1), Told()]
    for watcher, more in zip(told, ([f"hydra.run.dir={run}"], [f"resume={run}"]), strict=True):
        monkeypatch.setattr("jobs.edit.job.begin_tracker", lambda *_, watcher=watcher: watcher)
        program.call(tmp_path, *common, *more, succeeds=watcher.stop_at is None)
    assert told[0].cases == [0, 1]
    assert told[1].cases == [0, 1, 2]
