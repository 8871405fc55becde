import sys
from collections.abc import Callable
from typing import Any

import pytest
import tiny

import editing
from corrigenda import LanguageModel
from corrigenda.errors import SettingsError
from editing.registry import space_of
from jobs.tune.search import LAYER, NUMBER, Axis, axes_of, best_of, propose, settings_of, start_of

ROME, MEMIT = space_of(editing.Rome()), space_of(editing.Memit())

pytest.importorskip("optuna")

AXES = (
    Axis(LAYER, 0, 20, 3, whole=True),
    Axis(NUMBER, 1, 8, 5, whole=True, after_targets=True),
    Axis("ratio", 0.05, 30, 1, log=True, after_targets=True),
    Axis("value.clamp_norm_factor", 0.4, 8, 0.75, log=True),
)


lm = pytest.fixture(tiny.llama, scope="module")


def tried(
    number: int, value: Callable[[Any], float | None], axes: tuple[Axis, ...] = AXES, traced: tuple[int, ...] = ()
) -> list[dict[str, Any]]:
    """So many trials, with values by their parameters."""
    trials: list[dict[str, Any]] = []
    for place in range(number):
        proposal = propose(axes, trials, traced, seed=3)
        if proposal is None:
            break
        params = dict(proposal.params)
        trials.append({"number": place, "params": params, "why": proposal.why, "value": value(params)})
    return trials


def peak(params: Any) -> float:
    """Highest at layer 12."""
    return 1 / (1 + abs(params[LAYER] - 12))


def test_the_first_trials() -> None:
    trials = tried(3, peak, traced=(9, 2))
    assert trials[0]["params"] == start_of(AXES)
    assert trials[1]["params"] == start_of(AXES) | {LAYER: 11}  # five layers around the 9th
    assert trials[2]["params"] not in (trials[0]["params"], trials[1]["params"])
    assert tried(2, peak)[1]["why"] == "drawn"
    assert tried(2, peak, traced=(1,))[1]["why"] == "drawn"  # three: that is trial 0
    assert tried(2, peak, traced=(30,))[1]["params"][LAYER] == 20


def test_each_trial_is_in_its_range_and_another() -> None:
    trials = tried(16, peak)
    assert len({tuple(trial["params"].items()) for trial in trials}) == 16
    for trial in trials:
        for axis in AXES:
            value = trial["params"][axis.name]
            assert axis.low <= value <= axis.high
            assert not axis.whole or value == int(value)


def test_trials_that_share_targets_follow_those_that_have_their_own() -> None:
    trials = tried(13, peak)
    sharing = [trial["why"].startswith("drawn, with the targets of trial") for trial in trials]
    assert sharing == [False] + 4 * [False, True, True]
    for place, trial in enumerate(trials):
        if sharing[place]:
            best = best_of(trials[:place])
            assert best is not None
            assert trial["why"].endswith(f" {best['number']}")
            for name in (LAYER, "value.clamp_norm_factor"):
                assert trial["params"][name] == best["params"][name]
    rome = tuple(axis for axis in AXES if not axis.after_targets)
    assert {trial["why"] for trial in tried(5, peak, rome)[1:]} == {"drawn"}


def test_it_goes_where_values_are_high() -> None:
    far = [trial["params"][LAYER] for trial in tried(30, peak)[15:]]
    assert sum(abs(layer - 12) <= 4 for layer in far) > len(far) / 2


def test_a_run_that_was_stopped_tries_the_same() -> None:
    whole = tried(8, peak)
    for place in range(1, 8):
        again = propose(AXES, whole[:place], (), seed=3)
        assert again is not None
        assert again.params == whole[place]["params"]
    other = propose(AXES, whole[:4], (), seed=4)
    assert other is not None
    assert other.params != whole[4]["params"]


def test_trials_without_figures_are_passed_over() -> None:
    trials = tried(6, lambda params: None)
    assert len(trials) == 6
    assert best_of(trials) is None
    equal = [{"number": 0, "value": None}, {"number": 1, "value": 0.5}, {"number": 2, "value": 0.5}]
    assert best_of(equal) is equal[1]


def test_it_ends_where_all_was_tried() -> None:
    axes = (Axis(LAYER, 0, 2, 1, whole=True),)
    trials = tried(10, lambda params: 0.0, axes)
    assert sorted(trial["params"][LAYER] for trial in trials) == [0, 1, 2]
    assert len(tried(3, peak, (Axis(LAYER, 1, 1, 1, whole=True),))) == 1
    assert propose((), trials[:1], (), seed=0) is None


def test_the_axes_of_editors(lm: LanguageModel) -> None:
    assert lm.n_layers == tiny.DEPTH
    rome = {axis.name: axis for axis in axes_of(ROME, editing.Rome(layer=1), lm, ())}
    assert (rome[LAYER].low, rome[LAYER].high, rome[LAYER].start) == (0, 2, 1)
    late = {axis.name: axis for axis in axes_of(ROME, editing.Rome(layer=tiny.DEPTH - 2), lm, ())}
    assert late[LAYER].high == tiny.DEPTH - 2
    clamp = rome["value.clamp_norm_factor"]
    assert (clamp.low, clamp.high, clamp.start, clamp.log) == (0.4, 8, 4, True)
    memit = editing.Memit(depth=0.5, number=2, ratio=100.0)
    found = {axis.name: axis for axis in axes_of(MEMIT, memit, lm, (tiny.DEPTH - 1,))}
    assert found[LAYER].start == memit.resolved_layers(lm)[-1]
    assert found[LAYER].high == tiny.DEPTH - 2  # no layer reads the output of the last block
    assert (found[NUMBER].low, found[NUMBER].start, found[NUMBER].after_targets) == (1, 2, True)
    assert found["ratio"].high == 100  # what the editor has is in the range
    ends = editing.Memit(ends_only=True, depth=0.5, number=3)
    blue = {axis.name: axis for axis in axes_of(MEMIT, ends, lm, ())}
    assert (blue[NUMBER].start, blue[NUMBER].after_targets) == (3, False)  # it writes two, the ends of three
    weight = editing.Memit(ratio=None, weight=3.0)
    assert "ratio" not in {axis.name for axis in axes_of(MEMIT, weight, lm, ())}


def test_what_the_command_line_gives_is_not_tuned(lm: LanguageModel) -> None:
    def names(*fixed: str) -> set[str]:
        return {a.name for a in axes_of(MEMIT, editing.Memit(), lm, (), fixed) if a.low < a.high}

    assert names() == {LAYER, NUMBER, "ratio", "value.clamp_norm_factor"}
    assert names("layers", "ratio") == {"value.clamp_norm_factor"}
    assert names("depth", "ratio") == {"value.clamp_norm_factor"}
    assert names("number") == {LAYER, "ratio", "value.clamp_norm_factor"}


def test_the_settings_that_stand_for_values(lm: LanguageModel) -> None:
    started = start_of(AXES)
    assert settings_of(MEMIT, started, started) == {}
    assert settings_of(MEMIT, started | {"ratio": 2.5}, started) == {"ratio": 2.5}
    assert settings_of(MEMIT, started | {LAYER: 7.0}, started) == {"layers": [3, 4, 5, 6, 7]}
    assert settings_of(MEMIT, started | {NUMBER: 8}, started) == {"layers": [0, 1, 2, 3]}
    rome = {LAYER: 3.0, "value.kl_factor": 0.1}
    assert settings_of(ROME, rome | {LAYER: 4.0}, rome) == {"layer": 4}


def test_without_optuna_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SettingsError, match=r"job=tune needs Optuna: pip install 'corrigenda\[optuna\]'"):
        tried(2, peak)
