import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import tiny
import torch
from by_hooks import logits
from edits_parts import origin, random_update
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from corrigenda import CodebookEdit, ContextEdit, Edit, Fact, LanguageModel, LowRankEdit, SideMemoryEdit
from corrigenda.data import FactSet
from corrigenda.data.embedded import dialogues, held_out_texts
from corrigenda.forward.recording import forward_logits
from corrigenda.runs.folder import RunFolder
from eval import EditRun, EvalSettings, SequentialSettings, evaluate, measure, run_batch, run_sequential, run_single
from eval.measure import on_windows
from eval.measurement import HeldOut
from eval.protocols import batch, pre_edit
from eval.scoring.held_out import held_out_windows, in_turn, read_held_out

FEW = EvalSettings(generate=False, perplexity_windows=9, perplexity_window=12)
LAYER = 2
FACT = Fact("Thomas", "{} lives in", "Rome", "Paris")
FACTS = tuple(Fact(name, "{} lives in", "Rome", "Paris", id=name) for name in ("Thomas", "Danielle", "Ben", "Darrieux"))


def there(found: HeldOut | None) -> HeldOut:
    assert found is not None
    return found


def read(lm: LanguageModel, settings: EvalSettings = FEW) -> HeldOut:
    return there(read_held_out(lm, settings))


def by_hand(lm: LanguageModel, ids: list[int], first: int) -> float:
    """The sum of the log-probabilities of the tokens from a place on, from one whole forward."""
    logs = logits(lm, ids).double().log_softmax(-1)
    return sum(float(logs[at - 1, ids[at]]) for at in range(first, len(ids)))


def test_windows_are_of_the_texts_in_turn_and_do_not_overlap(lm: LanguageModel) -> None:
    settings = EvalSettings()
    windows = held_out_windows(lm, settings)
    assert [len(window) for window in windows] == [64] * 64
    for place, text in enumerate(held_out_texts().values()):
        mine = windows[place::3]
        assert len(mine) == (22, 21, 21)[place]
        assert [token for window in mine for token in window] == lm.tokenizer(text)["input_ids"][: 64 * len(mine)]


def test_a_text_that_is_too_short_is_an_error() -> None:
    with pytest.raises(
        ValueError, match=r"'prose' has 1674 tokens, too few for 30 windows of 64: lower eval.perplexity_w"
    ):
        read_held_out(tiny.build("llama"), EvalSettings(perplexity_windows=90))


def test_no_windows_no_perplexity(lm: LanguageModel) -> None:
    none = replace(FEW, perplexity_windows=0)
    assert read_held_out(lm, none) is None
    [found] = measure(lm, [FACT], none)
    assert found.held_out is None
    assert "log_perplexity" not in found.values


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom"])
def test_log_probs_by_hand(family: str) -> None:
    lm = tiny.build(family)
    found, windows = read(lm), held_out_windows(lm, FEW)
    expected = [by_hand(lm, window, 1) for window in windows]
    assert found.windows == tuple(range(9))
    assert found.tokens == (11,) * 9
    assert found.log_probs == pytest.approx(expected, abs=1e-3)
    assert found.log_perplexity == pytest.approx(-sum(expected) / 99, abs=1e-4)
    some = there(read_held_out(lm, FEW, [7, 2]))
    assert some.windows == (7, 2)
    assert some.log_probs == pytest.approx(found.only([7, 2]).log_probs, abs=1e-4)
    one_by_one = read(lm, replace(FEW, max_tokens=1))
    assert one_by_one.log_probs == pytest.approx(found.log_probs, abs=1e-4)


@pytest.mark.parametrize("n", [3, 45])
def test_under_a_context_the_same_tokens_count(lm: LanguageModel, n: int) -> None:
    context = "Thomas plays the violin . " * (n // 5) + "Rome is " * (n % 5)
    ids = lm.tokenizer(context)["input_ids"]
    expected = [by_hand(lm, [*ids, *window], len(ids) + 1) for window in held_out_windows(lm, FEW)]
    with ContextEdit(origin(lm), context).applied(lm):
        found = read(lm)
    assert found.tokens == (11,) * 9
    assert found.log_probs == pytest.approx(expected, abs=1e-3)


def test_a_context_that_leaves_no_room_leaves_no_perplexity(caplog: pytest.LogCaptureFixture) -> None:
    lm = tiny.build("llama")
    before = measure(lm, [FACT], FEW)
    caplog.set_level(logging.WARNING)
    with ContextEdit(origin(lm), "Rome is in the city . " * 9).applied(lm):
        [found] = measure(lm, [FACT], FEW, before)
    assert "with what is put before it, has 66 tokens, and tiny-llama reads at most 64" in caplog.text
    assert found.held_out is None
    assert {"log_perplexity", "perplexity_drift"}.isdisjoint(found.values)
    assert "token_accuracy" in found.values


def test_special_tokens_stand_before_every_window(lm: LanguageModel) -> None:
    lm.tokenizer._tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    windows = held_out_windows(lm, FEW)
    assert all(1 not in window for window in windows)
    expected = [by_hand(lm, [1, *window], 2) for window in windows]
    assert read(lm).log_probs == pytest.approx(expected, abs=1e-3)
    # The model reads 64 tokens: one of them is the special one.
    assert {len(window) for window in held_out_windows(lm, replace(FEW, perplexity_window=64))} == {63}


def test_dialogue_goes_through_the_chat_template(lm: LanguageModel) -> None:
    plain = held_out_windows(lm, FEW)
    lm.tokenizer.chat_template = "{% for m in messages %}<s> {{ m['role'] }} ! {{ m['content'] }} </s>{% endfor %}"
    windows = held_out_windows(lm, FEW)
    assert [windows[number] == plain[number] for number in range(9)] == [True, True, False] * 3
    turns = [turn for turns in dialogues(held_out_texts()["dialogue"]) for turn in turns]
    text = "".join(f"<s> {turn['role']} ! {turn['content']} </s>" for turn in turns)
    ids = lm.tokenizer(text)["input_ids"]
    assert ids[0] == 1
    assert [token for window in windows[2::3] for token in window] == ids[:36]


def test_what_stands_before_a_window_is_not_written_again_by_the_template(lm: LanguageModel) -> None:
    lm.tokenizer._tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    lm.tokenizer.chat_template = "<s>{% for m in messages %} {{ m['role'] }} ! {{ m['content'] }} </s>{% endfor %}"
    assert [window.count(1) for window in held_out_windows(lm, FEW)] == [0] * 9
    with_token = EvalSettings(perplexity_windows=30, perplexity_window=60)
    assert sum(window.count(1) for window in held_out_windows(lm, with_token)) == 0


def coefficients(lm: LanguageModel, windows: list[list[int]]) -> Tensor:
    """(window, position, d_ffn)."""
    rows = lm.batch(windows)
    with lm.memory(LAYER).capture(torch.ones_like(rows.input_ids, dtype=torch.bool)) as seen:
        forward_logits(lm, rows)
    return seen.coefficients.reshape(len(windows), len(windows[0]), -1)


def side_memory(lm: LanguageModel, settings: EvalSettings) -> tuple[Edit, list[bool]]:
    """A random side memory whose threshold lies between the windows' scores; and in which of them it answers."""
    memory = lm.memory(LAYER)
    delta = torch.randn(memory.values.shape, generator=torch.Generator().manual_seed(1))
    delta *= 30 * float(memory.values.norm() / delta.norm())
    scores = (coefficients(lm, held_out_windows(lm, settings))[:, 1:] @ delta).norm(dim=-1).mean(1)
    low, high = scores.sort().values[[2 * len(scores) // 3 - 1, 2 * len(scores) // 3]].tolist()
    edit = SideMemoryEdit.of(memory, origin(lm), delta[None], torch.tensor([(low + high) / 2]))
    return edit, (scores > (low + high) / 2).tolist()


def codebook(lm: LanguageModel, settings: EvalSettings) -> tuple[Edit, list[bool]]:
    """A codebook whose keys are those of the last tokens of two windows."""
    memory = lm.memory(LAYER)
    last = coefficients(lm, held_out_windows(lm, settings))[:, -1]
    values = 20 * torch.randn(2, memory.d_model, generator=torch.Generator().manual_seed(2))
    edit = CodebookEdit.of(memory, origin(lm), last[[1, 5]], values, torch.full((2,), 1e-3))
    return edit, ((last[:, None] - last[[1, 5]][None]).norm(dim=-1).min(1).values < 1e-3).tolist()


@pytest.mark.parametrize("make", [side_memory, codebook])
def test_an_edit_that_routes_answers_in_some_windows(lm: LanguageModel, make: object) -> None:
    edit, answers = make(lm, FEW)  # type: ignore[operator]
    assert 0 < sum(answers) < 9
    [before] = measure(lm, [FACT], FEW)
    with edit.applied(lm):
        [after] = measure(lm, [FACT], FEW, [before])
    without, found = there(before.held_out), there(after.held_out)
    assert without.activated is None
    assert "windows_activated" not in before.values
    assert list(found.activated or ()) == answers
    assert after.values["windows_activated"] == pytest.approx(sum(answers) / 9)
    old, new = without.by_window(), found.by_window()
    drifts = [new[window] - old[window] for window in range(9)]
    if make is side_memory:  # (a codebook's value stands at the last token, after which nothing is predicted)
        assert [abs(drift) > 1e-3 for drift in drifts] == answers
    assert [drift for drift, answer in zip(drifts, answers, strict=True) if not answer] == pytest.approx(
        [0] * (9 - sum(answers)), abs=1e-5
    )
    assert after.values["perplexity_drift"] == pytest.approx(sum(drifts) / 9)


def test_a_random_update_is_told_from_none() -> None:
    lm = tiny.build("gpt2")
    settings = EvalSettings(generate=False, perplexity_window=16)
    found = {}
    for norm in (0.0, 5.0):
        with random_update(lm, norm, LAYER).applied(lm):
            found[norm] = evaluate(lm, [FACT], settings).metrics["perplexity_drift"]
    none, update = found.values()
    assert (none["low"], none["after"], none["high"]) == (0, 0, 0)
    assert update["low"] is not None
    assert update["high"] is not None
    assert update["low"] > 0 or update["high"] < 0
    assert update["low"] < (update["after"] or 0) < update["high"]


def test_samples_take_turns() -> None:
    settings = EvalSettings()
    windows = [in_turn(place, settings) for place in range(16)]
    assert all(len(set(some)) == 8 for some in windows)
    assert Counter(window for some in windows for window in some) == dict.fromkeys(range(64), 2)
    assert all(min(Counter(window % 3 for window in some).values()) >= 2 for some in windows)
    assert in_turn(3, EvalSettings(perplexity_windows=5)) == (4, 0, 1, 2, 3)
    assert in_turn(3, EvalSettings(perplexity_windows=0)) == ()


def test_on_windows_keeps_values_and_windows_together(lm: LanguageModel) -> None:
    [whole] = measure(lm, [FACT], FEW)
    part = on_windows(whole, (4, 8))
    assert part.held_out == there(whole.held_out).only((4, 8))
    levels = there(whole.held_out).by_window()
    assert part.values["log_perplexity"] == pytest.approx((levels[4] + levels[8]) / 2)
    assert {**part.values, "log_perplexity": 0} == {**whole.values, "log_perplexity": 0}
    assert on_windows(whole, ()) is whole


@dataclass(frozen=True)
class Random:
    """Another random update for each first fact."""

    name: ClassVar[str] = "random"

    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> LowRankEdit:
        edit = random_update(lm, 1.0, LAYER, seed=len(facts[0].subject))
        return replace(edit, origin=replace(edit.origin, facts=tuple(facts), report=({},) * len(facts)))


def run_of(folder: Path, **settings: int) -> EditRun:
    lm = tiny.build("llama")
    return EditRun(lm, FactSet("some", FACTS), Random(), replace(FEW, **settings), RunFolder(folder), save_edits=False)


def test_edited_one_by_one_the_facts_cover_all_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = []
    monkeypatch.setattr(
        pre_edit, "read_held_out", lambda lm, settings: whole.append(read_held_out(lm, settings)) or whole[-1]
    )
    run = run_of(tmp_path, perplexity_sample=3)
    run_single(run)
    assert [one.windows for one in whole] == [tuple(range(9))]
    for place, fact in enumerate(FACTS):
        case = run.cases[fact.id]
        mine = tuple((3 * place + number) % 9 for number in range(3))
        assert case.before is not None
        assert case.before.held_out == whole[0].only(mine)
        assert there(case.after.held_out).windows == mine
        drift = there(case.after.held_out).log_perplexity - there(case.before.held_out).log_perplexity
        assert case.after.values["perplexity_drift"] == pytest.approx(drift, abs=1e-9)
        assert abs(drift) > 1e-4
    assert run.summary("single")["metrics"]["perplexity_drift"]["n"] == 4


def test_one_edited_model_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_after = []
    monkeypatch.setattr(
        batch, "read_held_out", lambda lm, settings: read_after.append(read_held_out(lm, settings)) or read_after[-1]
    )
    run = run_of(tmp_path)
    monkeypatch.setattr("eval.protocols.runs.CHUNK", 2)
    run_batch(run)
    assert len(read_after) == 1
    assert all(run.cases[fact.id].after.held_out == read_after[0] for fact in FACTS)
    drift = run.summary("batch")["metrics"]["perplexity_drift"]
    assert drift["low"] < drift["after"] < drift["high"]  # over windows: all facts have the same drift


def test_in_a_sequence(tmp_path: Path) -> None:
    run = run_of(tmp_path, perplexity_sample=2)
    sequence = run_sequential(run, SequentialSettings(checkpoints=(2,), chunk=2))
    windows = [there(case.after.held_out).windows for case in run.evaluation.cases]
    assert windows == [(0, 1), (2, 3), (4, 5), (6, 7)]
    for case in sequence.retention.cases:
        assert there(case.after.held_out).windows == tuple(range(9))
    for point in sequence.curve:
        drift = point["metrics"]["perplexity_drift"]
        assert drift["low"] < drift["after"] < drift["high"]
