import itertools

import pytest
import tiny
import torch
from editors_parts import confident
from torch import Tensor, nn

from corrigenda import EditRefusedError, Fact, LanguageModel
from editing import FineTune

BEN = Fact("Big Ben", "{} stands in", "the city of Rome", "London")
THOMAS = Fact("Thomas", "the mother tongue of {} is", "French", "English")
RIVER = Fact("river", "the {} in the north is", "green", "blue")
FACTS = [BEN, THOMAS, RIVER]


def rows(lm: LanguageModel, facts: list[Fact], end: bool) -> list[tuple[list[int], list[int]]]:
    """For each fact the tokens of its prompt, and of its target; by the tokenizer alone."""
    found = []
    for fact in facts:
        prompt = lm.tokenizer(fact.statement)["input_ids"]
        whole = lm.tokenizer(f"{fact.statement} {fact.target_new}")["input_ids"]
        found.append((prompt, whole[len(prompt) :] + ([lm.tokenizer.eos_token_id] if end else [])))
    return found


def mean_nll(lm: LanguageModel, facts: list[Fact], end: bool = True) -> list[Tensor]:
    """The mean of -log P of each fact's target tokens, by whole forwards of one row."""
    losses = []
    for prompt, target in rows(lm, facts, end):
        logits = lm.model(input_ids=torch.tensor([prompt + target])).logits[0, len(prompt) - 1 : -1]
        losses.append(nn.functional.cross_entropy(logits.float(), torch.tensor(target)))
    return losses


def plain(lm: LanguageModel, layer: int, facts: list[Fact], steps: int, lr: float, end: bool) -> Tensor:
    """V' - V after so many steps of Adam on the model's own parameter, all facts in each step: the plain way."""
    weight = lm.memory(layer).weight
    start = weight.detach().clone()
    weight.requires_grad_(True)
    optimiser = torch.optim.Adam([weight], lr=lr)
    for _ in range(steps):
        optimiser.zero_grad()
        torch.stack(mean_nll(lm, facts, end)).mean().backward()
        optimiser.step()
    weight.requires_grad_(False)
    change = weight.detach() - start
    with torch.no_grad():
        weight.copy_(start)
    return change if lm.memory(layer).transposed else change.T


@pytest.mark.parametrize("family", ["llama", "gpt2", "gptj", "gemma2", "bloom"])
@pytest.mark.parametrize("end_token", [True, False])
def test_it_is_adam_on_the_value_matrix(family: str, end_token: bool) -> None:
    """The change is that of plain training of this one parameter, though only the layers above it run."""
    lm = tiny.build(family)
    lm.model.double()  # Adam's first steps are the gradient's sign: in float32 noise decides where it is near zero
    settings = FineTune(layer=1, lr=0.01, epochs=3, steps=3, stop=1e-9, end_token=end_token)
    edit = settings.edit(lm, FACTS)
    expected = plain(lm, 1, FACTS, 3, 0.01, end_token)
    assert expected.abs().max() > 0.02
    torch.testing.assert_close(edit.delta(1), expected.float(), atol=1e-4, rtol=0)
    single = settings.edit(lm, [BEN])
    torch.testing.assert_close(single.delta(1), plain(lm, 1, [BEN], 3, 0.01, end_token).float(), atol=1e-4, rtol=0)


def test_without_the_end_token_it_is_not_learned() -> None:
    lm = confident()
    with FineTune(layer=1, lr=0.01, steps=200, end_token=False).edit(lm, [BEN]).applied(lm):
        assert float(mean_nll(lm, [BEN], end=False)[0]) < 0.05
        assert float(mean_nll(lm, [BEN], end=True)[0]) > 0.5


def test_a_model_without_an_end_token_can_do_without_it(lm: LanguageModel) -> None:
    lm.tokenizer.eos_token = None
    lm.model.generation_config.eos_token_id = lm.model.config.eos_token_id = None
    with pytest.raises(EditRefusedError, match="has no end token"):
        FineTune(layer=1, steps=1).edit(lm, [BEN])
    assert FineTune(layer=1, steps=2, end_token=False).edit(lm, [BEN]).delta(1).norm() > 0


def test_the_bound_holds_for_each_edit(lm: LanguageModel) -> None:
    editor = FineTune(layer=1, lr=0.01, bound=0.003, steps=10, stop=1e-9)
    first = editor.edit(lm, [BEN])
    assert float(first.delta(1).abs().max()) == pytest.approx(0.003)
    second = editor.extend(lm, first, [THOMAS])
    # Against V as this edit found it.
    assert float((second.delta(1) - first.delta(1)).abs().max()) == pytest.approx(0.003, rel=1e-3)
    assert float(second.delta(1).abs().max()) > 0.0031


def test_extending_goes_on_from_the_earlier_change(lm: LanguageModel) -> None:
    """The same as training the model on which the earlier edit is applied, plainly."""
    lm.model.double()
    editor = FineTune(layer=2, lr=0.01, steps=3, stop=1e-9)
    first = editor.edit(lm, [BEN])
    second = editor.extend(lm, first, [THOMAS])
    with first.applied(lm):
        expected = plain(lm, 2, [THOMAS], 3, 0.01, True)
    torch.testing.assert_close(second.delta(2) - first.delta(2), expected.float(), atol=1e-4, rtol=0)


def test_mini_batches_go_over_all_facts_in_a_shuffled_order(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []
    from editing.shared.training_rows import Rows

    pick = Rows.pick
    monkeypatch.setattr(Rows, "pick", lambda self, numbers: seen.append(list(numbers)) or pick(self, numbers))
    facts = [Fact(subject, "{} is", "Rome") for subject in ("one", "two", "six", "ten", "red")]
    FineTune(layer=1, epochs=4, batch_size=2, stop=1e-9).edit(lm, facts)
    assert [len(batch) for batch in seen] == [2, 2, 1] * 4
    epochs = [list(itertools.chain(*seen[i : i + 3])) for i in range(0, 12, 3)]
    assert all(sorted(epoch) == [0, 1, 2, 3, 4] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_learning_ends_when_all_facts_are_learned() -> None:
    lm = confident()
    edit = FineTune(layer=1, lr=0.01, epochs=500, stop=0.1).edit(lm, FACTS)
    passes = {figures["passes"] for figures in edit.origin.report}
    assert max(passes) < 500
    assert all(figures["loss"] <= 0.1 for figures in edit.origin.report)
    # A fact that the model knows already is left alone.
    with edit.applied(lm):
        again = FineTune(layer=2, stop=0.2).edit(lm, [BEN])
    assert float(again.delta(2).abs().max()) == 0
