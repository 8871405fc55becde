from collections.abc import Sequence
from pathlib import Path

import pytest
import tiny
import torch
from by_hooks import coefficients
from made_entries import MadeUp, a_fact, do, verbs

from corrigenda import AttachedEdit, Fact, KnowledgeBase, LanguageModel
from corrigenda.data.embedded import unrelated_prompts
from corrigenda.edits.routed import activated
from corrigenda.forward.recording import forward_logits
from corrigenda.indices.kinds import index_of
from corrigenda.knowledge.attached import Attached, nearest_other
from corrigenda.knowledge.entries import Entry

LAYER = 1
UNRELATED = tuple(
    tuple(torch.randint(4, tiny.VOCABULARY, (12,), generator=torch.Generator().manual_seed(seed)).tolist())
    for seed in range(40)
)
FACTS = [
    Fact("the Eiffel tower", "{} is in the city of", "Rome", id="a"),
    Fact("Danielle Darrieux", "{} speaks", "German", id="b"),
    Fact("Danielle  darrieux", "the mother tongue of {} is", "Dutch", id="c"),
    Fact("the river in Italy", "{} is by the city of", "Berlin", id="d"),
]
SILENT = ["the piano was in France", "Thomas plays the guitar"]


class Taken:
    """A solver that takes the keys from the model, and draws the values."""

    def __init__(self, layers: tuple[int, ...] = (LAYER,)) -> None:
        self.layers = layers

    def __call__(self, lm: LanguageModel, facts: Sequence[Fact]) -> list[Entry]:
        found = []
        for fact in facts:
            prompt = fact.statement
            upto = prompt[: prompt.index(fact.subject) + len(fact.subject)]
            for layer in self.layers:
                draw = torch.Generator().manual_seed(ord(fact.id))
                ids = lm.tokenizer(upto, add_special_tokens=False)["input_ids"]
                whole = lm.tokens(prompt)
                place = len(whole) - len(lm.tokenizer(prompt, add_special_tokens=False)["input_ids"]) + len(ids) - 1
                key = coefficients(lm, layer, whole)[place]
                value = 5 * torch.randn(lm.memory(layer).d_model, generator=draw)
                found.append(Entry(fact.id, layer, key, value, lm.fingerprint))
        return found


def compiled(path: Path, lm: LanguageModel, how: Attached, layers: tuple[int, ...] = (LAYER,)) -> AttachedEdit:
    with KnowledgeBase.open(path) as kb:
        kb.insert(FACTS, lm, Taken(layers))
        edit = kb.compile(lm, how)
    return edit


@pytest.mark.parametrize("activation", ["step", "relu"])
def test_thresholds_and_values_by_hand(lm: LanguageModel, activation: str, tmp_path: Path) -> None:
    """In float64, from forwards of single texts."""
    how = Attached(unrelated=UNRELATED, width=10**6, margin=0.3, activation=activation)  # type: ignore[arg-type]
    edit = compiled(tmp_path / "kb", lm, how)
    [layer] = edit.layers
    texts = [lm.tokens(prompt) for prompt in unrelated_prompts()] + [list(text) for text in UNRELATED]
    m = [coefficients(lm, LAYER, ids).double() for ids in texts]
    for_view, for_thresholds = torch.cat(m[::2]), torch.cat(m[1::2])
    deviation = (for_view.var(0, correction=0) + 0.01 * for_view.var(0, correction=0).mean()).sqrt()

    def view(rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize((rows - for_view.mean(0)) / deviation, dim=1)

    entries = Taken()(lm, FACTS)
    raw, values = (torch.stack([getattr(one, name) for one in entries]).double() for name in ("key", "value"))
    keys, text = view(raw), view(for_thresholds)
    residuals = values - raw @ lm.memory(LAYER).values.double()
    for number, fact in enumerate(FACTS):
        others = [i for i in range(4) if i != number and {i, number} != {1, 2}]  # b and c are of one subject
        highest = max(0.0, float((text @ keys[number]).max()), *(float(keys[i] @ keys[number]) for i in others))
        threshold = highest + 0.3 * (1 - highest)
        assert float(layer.thresholds[number]) == pytest.approx(threshold, abs=1e-5)
        assert edit.origin.report[number]["thresholds"] == {"1": float(layer.thresholds[number])}
        expected = residuals[number] / (1 if activation == "step" else 1 - threshold)
        assert torch.allclose(layer.values[number].double(), expected, rtol=1e-3)
        assert edit.origin.facts[number].id == fact.id
    assert torch.allclose(layer.keys.double(), keys, atol=1e-5)


@pytest.mark.parametrize("family", tiny.KINDS)
def test_an_entrys_own_prompt_gets_its_value(family: str, tmp_path: Path) -> None:
    lm = tiny.build(family)
    edit = compiled(tmp_path / "kb", lm, Attached(unrelated=UNRELATED, width=40), (LAYER, 2))
    entries = {entry.fact: entry for entry in Taken()(lm, FACTS)}
    bias = lm.memory(LAYER).bias
    silent = [lm.batch([lm.tokens(prompt)]) for prompt in SILENT]
    before = [forward_logits(lm, one) for one in silent]
    with edit.applied(lm):
        for fact in (FACTS[0], FACTS[3]):
            batch = lm.batch([lm.tokens(fact.statement)])
            with activated(lm) as seen, lm.memory(LAYER).capture() as memory:
                forward_logits(lm, batch)
            assert seen.rows == (True,)
            wanted = entries[fact.id].value + (0 if bias is None else bias)
            nearest_place = (memory.output[0] - wanted).norm(dim=1).min()
            assert float(nearest_place) < 1e-4 * float(wanted.norm())
        with activated(lm) as seen:
            after = [forward_logits(lm, one) for one in silent]
        assert seen.rows == (False, False)
        assert all(torch.equal(*pair) for pair in zip(after, before, strict=True))


def test_bfloat16_entries_speak(tmp_path: Path) -> None:
    whole = tiny.build("llama")
    lm = LanguageModel(whole.model.to(torch.bfloat16), whole.tokenizer, "tiny-bf16")
    edit = compiled(tmp_path / "kb", lm, Attached(unrelated=UNRELATED))
    with edit.applied(lm), activated(lm) as seen:
        forward_logits(lm, lm.batch([lm.tokens(prompt) for prompt in [FACTS[0].statement, *SILENT]]))
    assert seen.rows == (True, False, False)


def test_no_facts_are_no_edit_of_anything(lm: LanguageModel, tmp_path: Path) -> None:
    batch = lm.batch([lm.tokens(fact.statement) for fact in FACTS])
    before = forward_logits(lm, batch)
    with KnowledgeBase.open(tmp_path / "kb") as kb:
        edit = kb.compile(lm, Attached())
    with edit.applied(lm):
        assert torch.equal(forward_logits(lm, batch), before)
    assert "no entries" in edit.describe()


def test_the_list_alone_decides_the_bits(lm: LanguageModel, tmp_path: Path) -> None:
    how = Attached(unrelated=UNRELATED, width=16)
    with KnowledgeBase.open(tmp_path / "kb") as kb:
        for number, (verb, fact, facts) in zip(range(24), verbs(3), strict=False):
            do(kb, verb, fact, lm)
            if number % 8 == 7:
                with KnowledgeBase.open(tmp_path / f"new-{number}") as new:
                    new.insert([*facts.values()], lm, MadeUp())
                    found, expected = kb.compile(lm, how)._tensors(), new.compile(lm, how)._tensors()
                assert found.keys() == expected.keys()
                assert all(torch.equal(found[name], expected[name]) for name in found)


def test_keys_that_cannot_be_told_apart_still_speak_for_themselves(lm: LanguageModel, tmp_path: Path) -> None:
    twins = [a_fact(1), a_fact(2)]
    [entry] = Taken()(lm, FACTS[:1])
    solver = lambda _lm, facts: [Entry(f.id, LAYER, entry.key, entry.value, lm.fingerprint) for f in facts]  # noqa: E731
    with KnowledgeBase.open(tmp_path / "kb") as kb:
        kb.insert(twins, lm, solver)
        edit = kb.compile(lm, Attached(unrelated=UNRELATED, activation="relu"))
    assert edit.layers[0].thresholds.tolist() == pytest.approx([1 - 1e-4] * 2)
    assert edit.layers[0].values.isfinite().all()
    with edit.applied(lm), activated(lm) as seen:
        forward_logits(lm, lm.batch([lm.tokens(FACTS[0].statement)]))
    assert seen.rows == (True,)


@pytest.mark.parametrize("kind", ["exact", "product_keys"])
def test_nearest_of_another_group(kind: str) -> None:
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(4, 8, generator=draw)
    keys = torch.cat([centre + 0.01 * torch.randn(60, 8, generator=draw) for centre in centres])
    keys = torch.nn.functional.normalize(keys, dim=1)
    groups = [str(number // 60) for number in range(240)]
    found = nearest_other(keys, groups, index_of(kind, keys), candidates=240)  # type: ignore[arg-type]
    products = keys @ keys.T
    for number in range(240):
        own = number // 60 * 60
        products[number, own : own + 60] = -2
    assert torch.allclose(found, products.max(1).values, atol=1e-6)
    assert nearest_other(keys[:3], ["x", "x", "x"], None, 8).tolist() == [-1, -1, -1]


def test_beyond_what_is_looked_at_whole_an_index_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny.build("llama")
    [exact] = compiled(tmp_path / "one", lm, Attached()).layers
    monkeypatch.setattr("corrigenda.knowledge.attached.EXACT", 3)
    [large] = compiled(tmp_path / "two", lm, Attached()).layers
    [asked] = compiled(tmp_path / "three", lm, Attached(index="product_keys")).layers
    assert [exact.index, large.index, asked.index] == ["exact", "product_keys", "product_keys"]
