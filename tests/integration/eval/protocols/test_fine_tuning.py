from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from sequences import GrowingNudge, Nudge, plain, sequence

from corrigenda import LanguageModel, Origin
from corrigenda.edits.side_memory import SideMemoryEdit
from corrigenda.moments.text import Text
from editing import FineTune, NoEdit
from eval import CollapseStopSettings, FineTuningSettings
from eval.protocols import fine_tuning
from eval.protocols.fine_tuning import finetuned

TEXT = Text(tokens=512, length=16)


def state(lm: LanguageModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("weights", ["all", "lora"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_every_weight_comes_back_to_the_bit(family: str, weights: Any) -> None:
    lm = tiny.build(family)
    clean = state(lm)
    flags = [parameter.requires_grad for parameter in lm.model.parameters()]
    edit = Nudge().edit(lm, plain(1))
    asked = FineTuningSettings(steps=20, lr=1e-2, weights=weights, text=TEXT)
    random = torch.get_rng_state()
    with edit.applied(lm):
        edited = state(lm)
        with finetuned(lm, asked) as losses:
            assert not same(state(lm), edited)
            assert state(lm).keys() == edited.keys()  # the adapters are merged
        assert same(state(lm), edited)
    assert same(state(lm), clean)
    assert [parameter.requires_grad for parameter in lm.model.parameters()] == flags
    assert all(parameter.grad is None for parameter in lm.model.parameters())
    assert torch.equal(torch.get_rng_state(), random)
    assert len(losses) == 20
    assert sum(losses[-5:]) < sum(losses[:5])
    with finetuned(lm, asked) as again:  # and it can be done again, with the same steps on the same weights
        pass
    with finetuned(lm, asked) as once_more:
        pass
    assert again == once_more


def test_the_first_step_is_adamw_on_the_mean_loss() -> None:
    """By hand: AdamW's first step is -lr sign(gradient), but for epsilon and the decay of the weights."""
    lm, lr = tiny.build("llama"), 1e-3
    asked = FineTuningSettings(steps=1, lr=lr, batch_size=4, text=TEXT)
    old = lm.memory(1).values.clone()
    rows = torch.randperm(TEXT.n_sequences, generator=torch.Generator().manual_seed(0))[:4]
    ids = torch.tensor(TEXT.sequences(lm))[rows]
    weight = lm.memory(1).weight.requires_grad_(True)
    loss = lm.model(input_ids=ids, labels=ids).loss
    gradient = torch.autograd.grad(loss, weight)[0].T
    with finetuned(lm, asked) as losses:
        step = lm.memory(1).values - old * (1 - lr * 0.01)
    assert losses == [pytest.approx(float(loss.detach()), rel=1e-5)]
    large = gradient.abs() > 1e-5
    assert float(large.float().mean()) > 0.5
    assert torch.allclose(step[large], -lr * gradient.sign()[large], atol=3e-6)


def test_a_memory_beside_the_weights_stays_and_is_not_trained(lm: LanguageModel) -> None:
    clean, memory = state(lm), lm.memory(1)
    deltas = torch.randn(1, memory.d_ffn, memory.d_model, generator=torch.Generator().manual_seed(0))
    edit = SideMemoryEdit.of(memory, Origin(lm.name, lm.fingerprint, "test"), deltas, torch.tensor([0.0]))
    ids = lm.batch([lm.tokens("the city of Thomas is")]).input_ids

    def logits() -> torch.Tensor:
        with torch.no_grad():
            return lm.model(input_ids=ids).logits

    with edit.applied(lm):
        before = logits()
        with finetuned(lm, FineTuningSettings(steps=3, lr=1e-3, text=TEXT)):
            trained = logits()
            assert torch.equal(edit.deltas, deltas)
        assert torch.equal(logits(), before)
        assert not torch.equal(trained, before)
        with (
            pytest.raises(ValueError, match="edits of kind side_memory are applied that lie beside the weights"),
            finetuned(lm, FineTuningSettings(steps=3, weights="lora", text=TEXT)),
        ):
            pass
    with finetuned(lm, FineTuningSettings(steps=3, lr=1e-3, text=TEXT)):
        assert not torch.equal(logits(), trained)  # what it answered with was there in training and in scoring
    assert same(state(lm), clean)


def test_what_cannot_be_trained_is_refused_before_anything_is_edited(lm: LanguageModel, tmp_path: Path) -> None:
    lm.model.to(torch.bfloat16)
    asked: list[tuple[str, str]] = []
    with pytest.raises(ValueError, match=r"fine_tuning\.weights=all: tiny-llama is in bfloat16"):
        sequence(lm, plain(2), Nudge(asked=asked), tmp_path, fine_tuning=FineTuningSettings(steps=1, text=TEXT))
    assert not asked
    masked = tiny.build("bert")
    with pytest.raises(ValueError, match="is a masked model"), finetuned(masked, FineTuningSettings(steps=1)):
        pass


def test_a_strong_edit_survives_what_an_unlearned_one_never_had(tmp_path: Path) -> None:
    lm, some = tiny.build("llama"), plain(3)
    clean = state(lm)
    gentle = FineTuningSettings(steps=5, lr=1e-6, text=TEXT)
    violent = FineTuningSettings(steps=40, lr=3e-2, text=TEXT)
    found = {}
    for name, editor, asked in (
        ("strong", FineTune(layer=2, lr=0.05), gentle),
        ("unlearned", NoEdit(), gentle),
        ("lost", FineTune(layer=2, lr=0.05), violent),
    ):
        run = sequence(lm, some, editor, tmp_path / name, batch=3, checkpoints=(), fine_tuning=asked)
        assert same(state(lm), clean)
        figures = run.summary()["fine_tuning"]
        assert figures["before"] == run.retention.metrics
        assert run.after_fine_tuning is not None
        assert figures["metrics"] == run.after_fine_tuning.metrics
        assert len(figures["losses"]) == 2
        found[name] = [figures[part]["token_accuracy"]["after"] for part in ("before", "metrics")]
    assert found["strong"] == [1.0, 1.0]
    assert found["unlearned"] == [0.0, 0.0]
    assert found["lost"][0] == 1.0
    assert found["lost"][1] < 1.0


@pytest.mark.parametrize("editor", [Nudge, GrowingNudge])
def test_it_comes_once_after_the_last_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, editor: Any) -> None:
    lm, trained = tiny.build("llama"), list[int]()
    train = fine_tuning._train

    def counted(lm: LanguageModel, *rest: Any) -> list[float]:
        trained.append(len({fact.id for edit in lm.edits for fact in edit.origin.facts}))
        return train(lm, *rest)

    monkeypatch.setattr(fine_tuning, "_train", counted)
    settings: dict[str, Any] = {"checkpoints": (2,), "fine_tuning": FineTuningSettings(steps=2, text=TEXT)}
    run = sequence(lm, plain(4), editor(), tmp_path / "a", **settings)
    assert trained == [4]
    assert run.after_fine_tuning is not None
    again = sequence(lm, plain(4), editor(), tmp_path / "a", **settings)
    assert trained == [4]
    assert again.after_fine_tuning == run.after_fine_tuning
    # Cut short in the scoring: trained anew, and the same figures.
    path = tmp_path / "a/journal.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    assert sequence(lm, plain(4), editor(), tmp_path / "a", **settings).after_fine_tuning == run.after_fine_tuning
    assert trained == [4, 4]
    # A sequence that was stopped did not come to its last edit.
    limit = CollapseStopSettings(reliability=1.0)
    stopped = sequence(lm, plain(4), editor(refuses="0"), tmp_path / "b", collapse_stop=limit, **settings)
    assert (stopped.stopped is not None, stopped.after_fine_tuning, trained) == (True, None, [4, 4])
