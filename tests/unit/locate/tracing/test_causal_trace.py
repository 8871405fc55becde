"""Causal tracing: against a brute-force tracer in every family, the authors' numbers, and by hand."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import tiny
import torch
from malformed_parts import refused
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from tracing_parts import FACT, NOISE, brute_force

from corrigenda import Fact, LanguageModel
from corrigenda.prompts import encode_target
from locate import CausalTrace, CausalTraceResult, Noise, UnknownFactError, average, causal_trace, question
from locate.question import ask
from locate.tracing.noise import embedding_spread
from locate.tracing.trace import ROLES


@pytest.mark.parametrize("site", ["ffn", "attention", "block"])
def test_the_last_subject_token_alone_is_a_column_of_the_grid(lm: LanguageModel, site: str) -> None:
    settings = CausalTrace(site=site, window=2, noise=NOISE)  # type: ignore[arg-type]
    whole = settings.find(lm, FACT, "top")
    alone = settings.at_last_subject(lm, FACT, "top")
    assert torch.allclose(alone, whole.indirect_effects[:, whole.subject[1] - 1], atol=1e-6)
    some = settings.at_last_subject(lm, FACT, "top", layers=[0, 2, -1, -2])
    assert torch.allclose(some, alone[[0, 2, -1, -2]], atol=1e-6)
    assert float(alone.abs().max()) > 1e-5  # there is something to compare
    refused(IndexError, "layer 4", settings.at_last_subject, lm, FACT, "top", layers=[4])
    refused(ValueError, "use find", replace(settings, method="attribution").at_last_subject, lm, FACT, "top")


@pytest.mark.parametrize("prompt", ["the mother tongue of {} is the", "{} was with the red king in the"])
@pytest.mark.parametrize("site", ["ffn", "attention", "block"])
def test_the_relation_is_hidden(lm: LanguageModel, site: Literal["ffn", "attention", "block"], prompt: str) -> None:
    fact = replace(FACT, prompt=prompt)
    settings = CausalTrace(site=site, window=2, noise=NOISE, hidden="relation")
    trace = settings.find(lm, fact, "top")
    assert torch.allclose(trace.scores, brute_force(lm, fact, settings, list(trace.answer_ids)), atol=1e-6)
    assert float(trace.indirect_effects[:, -1].abs().max()) > 1e-5
    assert (trace.hidden, average([trace]).hidden) == ("relation", "relation")
    expected = trace.indirect_effects[:, [trace.subject[1] - 1, -1]].T
    assert torch.allclose(settings.at_last_tokens(lm, fact, "top"), expected, atol=1e-6)
    assert torch.allclose(settings.at_last_tokens(lm, fact, "top", layers=[2, 0]), expected[:, [2, 0]], atol=1e-6)


def test_a_bos_is_not_hidden_with_the_relation_also_where_the_prompt_has_it(lm: LanguageModel) -> None:
    lm.tokenizer._tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    settings = CausalTrace(window=2, noise=NOISE, hidden="relation")
    plain, own = (settings.find(lm, replace(FACT, prompt=f"{bos}{FACT.prompt}"), "top") for bos in ("", "<s> "))
    assert plain.tokens == own.tokens
    assert torch.equal(plain.scores, own.scores)


def test_a_prompt_that_ends_with_its_subject_has_no_relation_after_it() -> None:
    lm, fact = tiny.build("llama"), replace(FACT, prompt="the mother tongue of {}")
    message = "'the mother tongue of Danielle Darrieux' ends with its subject, and no token of the relation"
    refused(ValueError, message, causal_trace, lm, fact, "top", noise=NOISE, hidden="relation")
    refused(ValueError, message, CausalTrace(noise=NOISE).at_last_tokens, lm, fact, "top")
    with pytest.raises(ValueError, match="is a masked one: trace its subject"):
        causal_trace(tiny.build("bert"), FACT, "top", noise=NOISE, hidden="relation")


def test_the_corrupted_run_of_an_answer_of_several_tokens() -> None:
    lm = tiny.build("llama", scale=8.0)
    with torch.no_grad():
        lm.model.get_output_embeddings().weight.mul_(5)  # probabilities that differ from draw to draw
    trace = CausalTrace(noise=replace(NOISE, samples=4)).find(lm, FACT, "French guitar")
    span = slice(*trace.subject)
    ids = torch.tensor([[*lm.tokens(FACT.statement), *trace.answer_ids[:-1]]])
    each = []
    for noise in replace(NOISE, samples=4).draw(2.0, span.stop - span.start, 32):
        embedded = lm.model.get_input_embeddings()(ids).detach().clone()
        embedded[:, span] += noise
        logits = lm.model(inputs_embeds=embedded).logits[0, -len(trace.answer_ids) :]
        each.append(logits.softmax(-1)[torch.arange(len(trace.answer_ids)), list(trace.answer_ids)])
    probabilities = torch.stack(each)
    assert trace.p_corrupted == pytest.approx(float(probabilities.prod(1).mean()), rel=1e-3)
    assert trace.p_corrupted != pytest.approx(float(probabilities.mean(0).prod()), rel=0.2)


@pytest.mark.parametrize("site", ["block", "ffn"])
def test_answer_of_several_tokens(lm: LanguageModel, site: str) -> None:
    settings = CausalTrace(site=site, window=3, noise=NOISE)
    trace = settings.find(lm, FACT, "French guitar")
    assert len(trace.answer_ids) == 2
    assert torch.allclose(trace.scores, brute_force(lm, FACT, settings, list(trace.answer_ids)), atol=1e-6, rtol=1e-3)


def test_a_small_memory_changes_nothing() -> None:
    lm = tiny.build("qwen2")
    wide = causal_trace(lm, FACT, "top", noise=NOISE)
    narrow = causal_trace(lm, FACT, "top", noise=NOISE, max_tokens=1)
    assert torch.allclose(wide.scores, narrow.scores, atol=1e-6)


def test_a_model_without_the_usual_cache(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corrigenda.forward.recording.cached", lambda *_: None)
    for site in ("block", "ffn"):
        settings = CausalTrace(site=site, window=2, noise=NOISE)  # type: ignore[arg-type]
        trace = settings.find(lm, FACT, "top")
        expected = brute_force(lm, FACT, settings, list(trace.answer_ids))
        assert torch.allclose(trace.scores, expected, atol=1e-6, rtol=1e-3)


def test_a_model_that_gives_no_numbers(lm: LanguageModel) -> None:
    with torch.no_grad():
        lm.memory(1).values[3, 4] = float("nan")
    for settings in (CausalTrace(noise=NOISE), CausalTrace(site="ffn", window=2, method="attribution", noise=NOISE)):
        refused(ValueError, "gives no numbers", settings.find, lm, FACT, "top")


def test_the_first_order_estimate_where_no_gradients_are_kept(lm: LanguageModel) -> None:
    settings = CausalTrace(site="ffn", window=1, method="attribution", noise=NOISE)
    with torch.no_grad():
        scores = settings.find(lm, FACT, "top").scores
    assert torch.equal(scores, settings.find(lm, FACT, "top").scores)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_masked_models_are_traced_at_the_mask() -> None:
    lm = tiny.build("bert")
    lm.tokenizer.add_special_tokens({"mask_token": "blue"})  # any word of the tiny vocabulary will do
    fact = Fact("Paris", "{} is the city of blue .", "French")
    trace = causal_trace(lm, fact, "top", noise=NOISE)
    ids = torch.tensor([lm.tokens(fact.statement)])
    place = ids[0].tolist().index(lm.tokenizer.mask_token_id)
    clean = lm.model(input_ids=ids).logits[0, place].softmax(-1)
    assert math.isclose(trace.p_clean, float(clean.max()), rel_tol=1e-4)
    assert math.isclose(float(trace.scores[-1, place]), trace.p_clean, rel_tol=1e-4)
    # In a model that sees both ways, a state after the subject is corrupted too, and before the mask matters.
    assert (trace.indirect_effects[0].abs() > 1e-6).sum() > 2


def test_first_order_estimate_is_the_derivative(lm: LanguageModel) -> None:
    settings = CausalTrace(site="ffn", window=1, noise=Noise(samples=2, sigma=1e-2, seed=1))
    exact = settings.find(lm, FACT, "top")
    estimate = replace(settings, method="attribution").find(lm, FACT, "top")
    size = exact.indirect_effects.abs().max()
    assert size > 1e-5
    assert (exact.scores - estimate.scores).abs().max() < 0.05 * size
    assert estimate.p_clean == pytest.approx(exact.p_clean)
    assert estimate.p_corrupted == pytest.approx(exact.p_corrupted)


def test_an_unlikely_answer_has_attributions_in_16_bits_too() -> None:
    """Its P is below 1e-9, and the smallest number of float16 6e-8; the tolerance is a dozen roundings of 2^-11."""
    settings = CausalTrace(site="ffn", window=1, method="attribution", noise=Noise(samples=3, sigma=0.1))
    found = []
    for precision in (torch.float32, torch.float16):
        lm = tiny.build("llama", scale=8.0)
        with torch.no_grad():
            lm.model.get_output_embeddings().weight.mul_(6)
            last = lm.model(input_ids=torch.tensor([lm.tokens(FACT.statement)])).logits[0, -1]
        lm.model.to(precision)
        found.append(settings.find(lm, FACT, [int(last.argmin())]))  # type: ignore[arg-type]
    assert found[0].p_corrupted < 1e-9
    whole, half = (one.indirect_effects / one.p_corrupted for one in found)
    torch.testing.assert_close(half, whole, atol=12 * 2**-11 * float(whole.abs().max()), rtol=0)


def test_the_authors_noise() -> None:
    draws = Noise(samples=2, seed=1, recipe="rome").draw(0.5, 3, 4)
    expected = np.random.RandomState(1).randn(2, 3, 4) * 0.5
    assert np.allclose(draws.numpy(), expected, atol=1e-6)


def test_the_noise_is_measured_on_subjects() -> None:
    lm = tiny.build("gpt2")
    ids = lm.tokenizer("Paris Rome", add_special_tokens=False)["input_ids"]
    spread = lm.model.get_input_embeddings().weight[ids].std()
    assert embedding_spread(lm, ["Paris", "Rome"]) == pytest.approx(float(spread))
    assert Noise(factor=2, subjects=("Paris", "Rome")).level(lm) == pytest.approx(2 * float(spread))
    assert Noise().level(lm) > 0  # the subjects that ship with the project
    assert Noise(sigma=0.3).level(lm) == 0.3


def test_facts_the_model_does_not_know_are_refused(lm: LanguageModel) -> None:
    top = causal_trace(lm, FACT, "top", noise=NOISE).answer
    wrong = next(word for word in ("Paris", "Rome") if word != top)
    with pytest.raises(UnknownFactError, match=rf"does not know .*'{wrong}'.*it says '{top}'"):
        causal_trace(lm, replace(FACT, target_true=wrong), noise=NOISE)
    known = causal_trace(lm, replace(FACT, target_true=top), noise=NOISE)
    assert known.answer == top
    assert causal_trace(lm, replace(FACT, target_true=wrong), wrong, noise=NOISE).answer == wrong


def made_up(scores: Tensor, subject: tuple[int, int], name: str = "x", site: str = "ffn") -> CausalTraceResult:
    n = scores.shape[1]
    return CausalTraceResult(
        fact=Fact(name, "{} is", "y"),
        prompt="p",
        tokens=tuple("abcdefgh"[:n]),
        subject=subject,
        answer="y",
        answer_ids=(5,),
        site=site,
        window=2,
        method="exact",
        severed=None,
        sigma=1.0,
        samples=1,
        p_clean=0.9,
        p_corrupted=0.1,
        scores=scores,
    )


def test_roles_by_hand() -> None:
    def roles(n: int, subject: tuple[int, int]) -> list[str | None]:
        return [None if r is None else ROLES[r] for r in made_up(torch.zeros(1, n), subject).roles]

    first, middle, last, after, further, end = ROLES
    assert roles(8, (1, 5)) == [None, first, middle, middle, last, after, further, end]
    assert roles(4, (0, 1)) == [last, after, further, end]  # one token: the subject's last
    assert roles(3, (0, 2)) == [first, last, end]  # what follows at once is the prompt's last
    assert roles(3, (1, 3)) == [None, first, end]


def test_average_by_hand() -> None:
    one = made_up(torch.tensor([[0.1, 0.3, 0.5, 0.1, 0.2], [0.1, 0.5, 0.7, 0.3, 0.1]]), (1, 4), "a")
    two = made_up(torch.tensor([[0.5, 0.1, 0.1], [0.3, 0.1, 0.9]]), (0, 1), "b")
    mean = average([one, two])
    # Last subject token: column 3 of the first, column 0 of the second; 0.1 is the corrupted run's.
    assert torch.allclose(mean.effects[2], torch.tensor([(0.0 + 0.4) / 2, (0.2 + 0.2) / 2]))
    assert torch.allclose(mean.effects[1], torch.tensor([0.4, 0.6]))  # middle: the first fact only
    assert torch.allclose(mean.effects[5], torch.tensor([(0.1 + 0.0) / 2, (0.0 + 0.8) / 2]))
    assert mean.counts == (1, 1, 2, 1, 0, 2)
    assert bool(mean.effects[4].isnan().all())
    assert mean.total_effect[0] == pytest.approx(0.8)
    assert bool((mean.low[2] <= mean.effects[2]).all())
    assert bool((mean.high[2] >= mean.effects[2]).all())
    assert bool(mean.low[1].isnan().all())  # one subject alone has no interval
    assert bool(average([two, one, one]).low[1].isnan().all())  # nor has one of two facts, beside another subject


def test_what_cannot_be_averaged() -> None:
    refused(ValueError, "one kind, got 0", average, [])
    with pytest.raises(ValueError, match="one kind, got 2"):
        average([made_up(torch.zeros(2, 3), (0, 1)), made_up(torch.zeros(2, 3), (0, 1), site="block")])
    one = made_up(torch.zeros(2, 3), (0, 1))
    for other in (replace(one, hidden="relation"), replace(one, samples=9)):
        refused(ValueError, "one kind, got 2", average, [one, other])
    refused(ValueError, "one noise, got sigma=1 to 3", average, [one, replace(one, sigma=3.0)])
    assert average([one, replace(one, sigma=1 + 1e-7)]).n_facts == 2


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_pictures(tmp_path: Path, suffix: str) -> None:
    trace = made_up(torch.rand(6, 5, generator=torch.Generator().manual_seed(0)), (1, 3))
    dollar = replace(trace, answer="US$", tokens=("$a$", "b", "c", " ", "\n"))
    dollar.plot(tmp_path / f"trace{suffix}")
    average([trace, dollar]).plot(tmp_path / f"average{suffix}")
    heads = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}
    for name in ("trace", "average"):
        assert (tmp_path / f"{name}{suffix}").read_bytes().startswith(heads[suffix])


def test_settings_that_make_no_sense() -> None:
    for other in ({"site": "ffn"}, {"method": "attribution"}):
        refused(ValueError, "severed tracing restores block outputs", CausalTrace, severed="ffn", **other)
    refused(ValueError, "there is none", Noise(subjects=()).level, tiny.build("gpt2"))


def test_a_window_larger_than_the_model() -> None:
    lm, settings = tiny.build("llama"), {"site": "ffn", "noise": NOISE}
    with pytest.warns(UserWarning, match=f"window of 9 layers does not fit tiny-llama, which has {tiny.DEPTH}"):
        cut = causal_trace(lm, FACT, "top", window=9, **settings)
    assert cut.window == tiny.DEPTH
    assert torch.equal(cut.scores, causal_trace(lm, FACT, "top", window=tiny.DEPTH, **settings).scores)
    # Block outputs are restored singly, so the default of 10 is no obstacle there.
    assert causal_trace(tiny.build("llama"), FACT, "top", noise=NOISE).window == 1


def test_an_answer_is_a_whole_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny.build_byte_level()
    ids = encode_target(lm.tokenizer, "中国的首都是", "东")
    assert len(ids) == 3  # not in the tokenizer's texts
    says = iter([*ids, 0])
    monkeypatch.setattr(question, "_top", lambda *_: next(says))
    asked = ask(lm, Fact("中国", "{}的首都是", "罗马", "东京"))
    assert (asked.answer, asked.answer_ids) == ("东", tuple(ids))
    says = iter([*ids[:2], ids[0], ids[1], ids[2]])
    refused(UnknownFactError, "does not know", ask, lm, Fact("中国", "{}的首都是", "罗马", "东京"))
