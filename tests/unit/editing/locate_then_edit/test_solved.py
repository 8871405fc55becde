import dataclasses
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from stand_ins import FACTS, without_text

import editing.locate_then_edit.solved as module
from corrigenda import ContextEdit, LanguageModel, Origin
from editing import AlphaEdit, Memit, ValueSettings
from editing.locate_then_edit.prompts import build_prompts
from editing.locate_then_edit.solved import Batch, Solved, Solving, read, write

PREFIXES = ("", "red green . ")
VALUE = ValueSettings(steps=4, lr=0.2, weight_decay=0.02, early_stop_loss=-1.0)
COMMON = {"layers": (1, 2), "prefixes": PREFIXES, "value": VALUE, "refuse_norm": 1e9, "most_per_coefficient": 1.0}
MEMIT = Memit(**COMMON, batch_size=2)
ALPHA = AlphaEdit(**COMMON, batch_size=2, energy=0.5)
OTHER_VALUES: tuple[dict[str, Any], ...] = (
    {"steps": 3},
    {"lr": 0.1},
    {"weight_decay": 0.5},
    {"clamp_norm_factor": 0.5},
    {"clamp_norm": "bare"},
    {"kl_factor": 0.5},
    {"kl_prompt": "the city {}"},
    {"kl_position": "last"},
    {"early_stop_loss": 1e-3},
    {"confident_steps": 1},
    {"products": "bfloat16"},
)
"""Each setting of the solver, by a value that is not the one in `VALUE`."""


lm = pytest.fixture(tiny.steep)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    without_text(monkeypatch, tmp_path)
    return tmp_path


@pytest.fixture
def solves(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many facts each call of the solver is given."""
    calls: list[int] = []
    whole = module.solve_target_values

    def counted(lm: LanguageModel, run, *args):  # type: ignore[no-untyped-def]
        calls.append(run.prompts.n_facts)
        return whole(lm, run, *args)

    monkeypatch.setattr(module, "solve_target_values", counted)
    return calls


def test_another_closed_form_solves_nothing(lm: LanguageModel, solves: list[int]) -> None:
    first = MEMIT.edit(lm, FACTS)
    assert solves == [2, 1]
    again = MEMIT.edit(lm, FACTS)
    other = ALPHA.edit(lm, FACTS)
    assert solves == [2, 1]
    assert torch.equal(again.delta(1), first.delta(1))
    assert not torch.equal(other.delta(1), first.delta(1))
    assert ["solved" in one for one in first.origin.report] == [False] * 3
    for figures, kept in zip(first.origin.report, other.origin.report, strict=True):
        assert kept["solved"] == "kept"
        assert all(kept[name] == figures[name] for name in ("loss", "steps", "step_losses"))


def test_a_run_that_was_killed_goes_on(lm: LanguageModel, solves: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.MonkeyPatch.context() as patch:
        whole = module.solve_target_values

        def killed(lm: LanguageModel, run, *args):  # type: ignore[no-untyped-def]
            if solves:
                raise KeyboardInterrupt
            return whole(lm, run, *args)

        patch.setattr(module, "solve_target_values", killed)
        with pytest.raises(KeyboardInterrupt):
            MEMIT.edit(lm, FACTS)
    assert solves == [2]
    found = MEMIT.edit(lm, FACTS)
    assert solves == [2, 1]
    plain = dataclasses.replace(MEMIT, keep_targets=False).edit(lm, FACTS)
    assert torch.equal(found.delta(2), plain.delta(2))


def test_it_can_be_turned_off(lm: LanguageModel, solves: list[int], cache: Path) -> None:
    editor = dataclasses.replace(MEMIT, keep_targets=False)
    editor.edit(lm, FACTS)
    editor.edit(lm, FACTS)
    assert solves == [2, 1, 2, 1]
    assert not (cache / "targets").exists()


def test_only_what_is_missing_of_a_batch_is_solved_for(lm: LanguageModel, solves: list[int]) -> None:
    MEMIT.edit(lm, FACTS[1:2])
    edit = dataclasses.replace(MEMIT, batch_size=8).edit(lm, FACTS)
    assert solves == [1, 2]
    plain = dataclasses.replace(MEMIT, batch_size=8, keep_targets=False).edit(lm, FACTS)
    # A fact's target is the same to rounding whichever others run beside it.
    torch.testing.assert_close(edit.delta(2), plain.delta(2), rtol=1e-3, atol=1e-4)


def targets(lm: LanguageModel, solving: Solving, layer: int = 1) -> None:
    facts = FACTS[:1]
    prompts = build_prompts(lm, facts, solving.prefixes, solving.settings.kl_prompt, solving.settings.kl_position)
    solving.targets(lm, [Batch(facts, prompts)], [layer])


SOLVING = Solving(PREFIXES, VALUE, "block", True)


def test_a_target_is_of_how_it_is_solved_for(lm: LanguageModel, solves: list[int]) -> None:
    targets(lm, SOLVING)
    others = [dataclasses.replace(SOLVING, settings=dataclasses.replace(VALUE, **one)) for one in OTHER_VALUES]
    others.append(dataclasses.replace(SOLVING, prefixes=("", "blue green . ")))  # as many as before
    others.append(dataclasses.replace(SOLVING, site="ffn"))
    for number, other in enumerate(others, 1):
        targets(lm, other)
        targets(lm, SOLVING)
        assert solves == [1] * (1 + number), other


def test_every_setting_of_the_solver_is_changed_once() -> None:
    assert sorted(name for one in OTHER_VALUES for name in one) == sorted(f.name for f in dataclasses.fields(VALUE))
    assert all(getattr(VALUE, name) != value for one in OTHER_VALUES for name, value in one.items())


def test_a_target_is_of_a_layer_of_a_model_as_it_is(lm: LanguageModel, solves: list[int]) -> None:
    edit = MEMIT.edit(lm, FACTS[1:])
    solves.clear()
    targets(lm, SOLVING)
    targets(lm, SOLVING, layer=2)
    targets(tiny.build("llama", seed=1, scale=8.0), SOLVING)
    assert solves == [1] * 3
    for applied in (edit, ContextEdit(Origin(lm.name, lm.fingerprint, "x"), "Rome is in Italy . ")):
        with applied.applied(lm):
            solves.clear()
            targets(lm, SOLVING)
            targets(lm, SOLVING)
            assert solves == [1]
    targets(lm, SOLVING)
    assert solves == [1]


@pytest.mark.parametrize(
    "damaged", [lambda _: b"x" * 100, lambda content: content[:-8], lambda content: content[:-4] + b"\x00\x00\x80\x3f"]
)
def test_a_damaged_entry_is_solved_for_again(lm: LanguageModel, solves: list[int], cache: Path, damaged: Any) -> None:
    MEMIT.edit(lm, FACTS[:1])
    [path] = cache.glob("targets/*/*.safetensors")
    content = path.read_bytes()
    path.write_bytes(damaged(content))
    with pytest.warns(UserWarning, match=r" is damaged .*; the target is solved for again"):
        MEMIT.edit(lm, FACTS[:1])
    assert solves == [1, 1]
    MEMIT.edit(lm, FACTS[:1])
    assert solves == [1, 1]


def test_a_target_of_fewer_contexts_is_another(lm: LanguageModel) -> None:
    """Which contexts are outliers, and whether what is to be kept is, goes by all layers that an editor aims at."""
    prompts = build_prompts(lm, FACTS[:1], PREFIXES, VALUE.kl_prompt, VALUE.kl_position)
    fewer = dataclasses.replace(prompts._rows(prompts.prefix != 1), outlying=torch.ones(1, dtype=torch.long))
    free = prompts._rows(prompts.rewriting)
    solving = Solving(PREFIXES, VALUE, "ffn", keep=True)
    of_all, of_fewer, of_free, again = (
        solving.targets(lm, [Batch(FACTS[:1], one)], [1])[0][1] for one in (prompts, fewer, free, prompts)
    )
    assert torch.equal(of_all, again)
    assert not torch.equal(of_all, of_fewer)
    assert not torch.equal(of_all, of_free)


def test_what_is_not_finite_is_not_kept(tmp_path: Path) -> None:
    assert not Solved(torch.tensor([1.0, float("nan")]), {}).finite
    assert not Solved(torch.ones(2), {"loss": float("nan")}).finite
    fine = Solved(torch.ones(2), {"loss": 1.0})
    assert fine.finite
    write(tmp_path / "x.safetensors", fine)
    found = read(tmp_path / "x.safetensors")
    assert found is not None
    assert torch.equal(found.value, fine.value)
    assert found.report == {"loss": 1.0, "solved": "kept"}
    assert read(tmp_path / "y.safetensors") is None
