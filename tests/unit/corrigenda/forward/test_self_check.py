from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from corrigenda import LanguageModel, UnsupportedModelError
from corrigenda.forward import self_check
from corrigenda.forward.self_check import check_itself
from corrigenda.models import sites


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path))
    monkeypatch.setattr(self_check, "_passed", set())


@pytest.mark.parametrize("family", [*tiny.CONFIGS, *tiny.MIXTURES])
def test_every_family_of_the_table_passes(family: str, tmp_path: Path) -> None:
    tiny.build(family)
    assert list(tmp_path.glob("families/*.json"))


def test_it_is_done_once_for_each_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = []
    monkeypatch.setattr(self_check, "_check", lambda lm: done.append(lm.name) or True)
    lm = tiny.build("llama")
    tiny.build("llama", seed=1)
    assert len(done) == 1
    self_check._passed.clear()  # another process
    check_itself(lm)
    assert len(done) == 1
    lm.model.config.rope_theta = 5.0
    check_itself(lm)
    LanguageModel(lm.model.bfloat16(), lm.tokenizer)
    assert len(done) == 3


def test_weights_that_give_no_numbers_say_nothing(lm: LanguageModel, tmp_path: Path) -> None:
    self_check._passed.clear()
    for path in tmp_path.rglob("*.json"):
        path.unlink()
    with torch.no_grad():
        lm.memory(1).values[3, 4] = float("nan")
    check_itself(lm)
    assert not self_check._passed
    assert not list(tmp_path.rglob("*.json"))


def _earlier(options: Any) -> int:
    """How many positions come before those that are run."""
    cache = options.get("past_key_values")
    return 0 if cache is None else int(cache.get_seq_length())


class Changed(torch.nn.Module):
    """A layer's attention that answers otherwise in some forwards."""

    def __init__(self, inner: torch.nn.Module, when: Any) -> None:
        super().__init__()
        self.inner, self.when = inner, when

    def forward(self, hidden_states: torch.Tensor, **options: Any) -> Any:
        output, *others = self.inner(hidden_states, **options)
        return (output * (0.1 if self.when(hidden_states, options) else 1.0), *others)


@pytest.mark.parametrize(
    ("when", "refused"),
    [
        (lambda states, _: states.shape[1] < 4, "a forward with a cache gives other probabilities than a plain"),
        (lambda _, options: _earlier(options) == 3, "a partial forward gives other probabilities than a plain forward"),
    ],
)
def test_another_answer_is_refused(when: Any, refused: str) -> None:
    model = tiny.build("llama", scale=8.0).model
    for block in model.model.layers:
        block.self_attn = Changed(block.self_attn, when)
    self_check._passed.clear()
    model.config.rope_theta = 7.0  # another kind
    family = tiny.build("llama").architecture.family
    with pytest.raises(UnsupportedModelError, match=refused):
        LanguageModel(model, tiny.tokenizer(), family=family)


def test_a_site_at_which_nothing_changes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, lm = sites._module, tiny.build("llama")
    dead = torch.nn.Identity()
    monkeypatch.setattr(
        sites,
        "_module",
        lambda architecture, site, layer: dead if site.name == "ffn" else whole(architecture, site, layer),
    )
    self_check._passed.clear()
    lm.model.config.rope_theta = 9.0
    with pytest.raises(UnsupportedModelError, match="a forward with hooks at all sites fails"):
        check_itself(lm)


def test_what_fails_inside_transformers_is_one_line() -> None:
    model = tiny.build("llama").model
    model.config.rope_theta = 11.0

    def broken(*_: Any, **__: Any) -> Any:
        raise IndexError("list index out of range")

    model.model.layers[0].self_attn.forward = broken
    with pytest.raises(UnsupportedModelError, match=r"a plain forward fails \(IndexError: list index out of range\)"):
        LanguageModel(model, tiny.tokenizer())
