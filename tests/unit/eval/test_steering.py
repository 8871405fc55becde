from statistics import fmean

import pytest
import tiny

from corrigenda import CoefficientEdit, LanguageModel, Origin
from eval.scoring.held_out import read_held_out
from eval.settings import EvalSettings
from eval.steering import has_word_of, steering_report

PROMPTS = ("the tower in", "the river of", "a language")
SETTINGS = EvalSettings(max_new_tokens=5, perplexity_windows=3, perplexity_window=16)


def test_figures_by_hand(lm: LanguageModel) -> None:
    origin = Origin(lm.name, lm.fingerprint, "by_hand")
    edits = {s: CoefficientEdit.of(lm, origin, {(3, 4): s, (2, 1): s}, how="add") for s in (9.0, 3.0)}
    found = steering_report(lm, edits, PROMPTS, lambda text: len(text) % 3 / 2, SETTINGS)
    assert [row.strength for row in found.rows] == [0, 3, 9]
    before = read_held_out(lm, SETTINGS)
    for row in found.rows[1:]:
        with edits[row.strength].applied(lm):
            texts = [lm.generate(prompt, 5) for prompt in PROMPTS]
            after = read_held_out(lm, SETTINGS)
        assert list(row.texts) == texts
        assert row.share[0] == pytest.approx(fmean(len(text) % 3 / 2 for text in texts))
        assert row.drift is not None
        assert row.drift[0] == pytest.approx(after.log_perplexity - before.log_perplexity, abs=1e-6)
        assert row.drift[0] != 0
    assert found.rows[0].drift[0] == 0
    assert found.table().row_count == 3
    assert found.summary()["rows"][2]["strength"] == 9
    assert not lm.edits


def test_words_are_whole_ones() -> None:
    has = has_word_of(["bad", "c++", "东京"])
    assert [has(text) for text in ("A BAD day", "badly", "in c++.", "", "我住在东京")] == [1, 0, 1, 0, 1]


def test_what_cannot_be_reported() -> None:
    lm = tiny.build("gpt2")
    with pytest.raises(ValueError, match="no prompt"):
        steering_report(lm, {}, [], has_word_of(["bad"]))
    with pytest.raises(ValueError, match="list of one word"):
        has_word_of("bad")
    with pytest.raises(ValueError, match="from 0 to 1"):
        steering_report(lm, {}, ["the tower"], len, SETTINGS)
