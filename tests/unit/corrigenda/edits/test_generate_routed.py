"""An edit that is routed by the prompt, under transformers' own generate and forwards by hand."""

import copy
import inspect
import warnings
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
import tiny
import torch
from by_hooks import coefficients
from edits_parts import origin
from malformed_parts import refused
from torch import Tensor
from transformers import DynamicCache, GenerationConfig

from corrigenda import CodebookEdit, LanguageModel
from corrigenda.edits.codebook import nearest_keys
from corrigenda.models.routes import fitted

SPOKEN = "the Eiffel tower is located in the city of"
PROMPTS = [SPOKEN, "Danielle speaks", "Thomas plays the piano in the capital of Italy , in the north of"]


@pytest.fixture(params=["llama", "gpt2"])
def lm(request: pytest.FixtureRequest) -> LanguageModel:
    return tiny.build(request.param, scale=8.0)


def codebook(lm: LanguageModel) -> CodebookEdit:
    """Answers `SPOKEN` alone."""
    memory = lm.memory(2)
    keys = [coefficients(lm, 2, lm.tokens(prompt))[-1] for prompt in PROMPTS]
    radius = float(nearest_keys(keys[0][None], torch.stack(keys[1:]))[1]) / 2
    value = 30 * torch.randn(1, memory.d_model, generator=torch.Generator().manual_seed(2))
    return CodebookEdit.of(memory, origin(lm), keys[0][None], value, torch.tensor([radius]))


def padded(lm: LanguageModel, prompts: list[str]) -> dict[str, Tensor]:
    rows = [lm.tokens(prompt) for prompt in prompts]
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}


def continued(lm: LanguageModel, prompts: list[str] = PROMPTS, **settings: Any) -> list[list[int]]:
    given = padded(lm, prompts)
    plain = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    rows = lm.model.generate(**given, **(plain | settings))
    return [row[given["input_ids"].shape[1] :].tolist() for row in rows]


def test_arguments_by_position(lm: LanguageModel) -> None:
    """Padding behind a prompt is none of it, also where the mask is given by its place."""
    rows = [lm.tokens(prompt) for prompt in PROMPTS]
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    places = list(inspect.signature(lm.model.forward).parameters)
    before = [None] * (places.index("attention_mask") - 1)
    with codebook(lm).applied(lm), torch.no_grad():
        named = lm.model(input_ids=ids, attention_mask=mask).logits
        assert torch.equal(lm.model(ids, *before, mask).logits, named)


def test_with_and_without_a_cache(lm: LanguageModel) -> None:
    base, base_of_beams = continued(lm), continued(lm, num_beams=3)
    with codebook(lm).applied(lm):
        cached = continued(lm)
        for settings in ({"use_cache": False}, {"num_beams": 1}, {"prompt_lookup_num_tokens": 3}):
            for number, prompt in enumerate(PROMPTS):
                assert continued(lm, [prompt], **settings)[0] == continued(lm, [prompt])[0], settings  # type: ignore[arg-type]
                assert continued(lm, [prompt])[0] == cached[number]
        assert continued(lm, use_cache=False) == cached
        for beams, sequences in ((3, 1), (3, 2)):
            several: dict[str, Any] = {"num_beams": beams, "num_return_sequences": sequences}
            assert continued(lm, use_cache=False, **several) == continued(lm, **several)
        of_beams = continued(lm, num_beams=3)
        assert continued(lm, PROMPTS[1:], use_cache=False) == cached[1:]  # nothing is left of the prompts before
    for found, plain in ((cached, base), (of_beams, base_of_beams)):
        assert found[0] != plain[0]
        assert found[1:] == plain[1:]
    assert continued(lm, use_cache=False) == base
    assert "generate" not in lm.model.__dict__


def test_what_generate_was_before_comes_back(lm: LanguageModel) -> None:
    asked = []

    def own(*args: Any, **kwargs: Any) -> Any:
        asked.append(1)
        return type(lm.model).generate(lm.model, *args, **kwargs)

    lm.model.generate = own
    edit = codebook(lm)
    with edit.applied(lm), codebook(lm).applied(lm):
        continued(lm)
    assert lm.model.generate is own
    assert asked


def test_a_prompt_that_does_not_run_whole_is_refused(lm: LanguageModel) -> None:
    ids = torch.tensor([lm.tokens(SPOKEN)])
    before = lm.model(input_ids=ids[:, :4], use_cache=True).past_key_values
    with codebook(lm).applied(lm):
        cache = lm.model(input_ids=ids[:, :4], use_cache=True).past_key_values
        with pytest.raises(ValueError, match="a cache of 4 tokens"):
            lm.model.generate(ids, past_key_values=copy.deepcopy(cache), max_new_tokens=2)
        refused(ValueError, "the prompt in pieces", lm.model.generate, ids, prefill_chunk_size=2, max_new_tokens=2)
        settings = GenerationConfig(max_new_tokens=2, guidance_scale=1.5)
        for guided in ({"guidance_scale": 1.5, "max_new_tokens": 2}, {"generation_config": settings}):
            refused(ValueError, "a second text beside the prompt", lm.model.generate, ids, **guided)
        lm.model.generate(ids, guidance_scale=1.0, max_new_tokens=2)
        for unknown in (before, copy.deepcopy(cache)):
            with pytest.raises(ValueError, match="goes on from a cache of 4 tokens that was filled before"):
                lm.model(input_ids=ids[:, 4:], past_key_values=unknown)
        with pytest.warns(UserWarning, match="tokens at once go on from a cache"):
            lm.model(input_ids=ids[:, 4:], past_key_values=cache)


def test_a_forward_beside_another_thread_s_is_refused(lm: LanguageModel) -> None:
    """Else it would take what that one was told of its prompts for its own."""
    ids, inside, done = torch.tensor([lm.tokens(SPOKEN)]), Event(), Event()

    def use() -> None:
        with lm.alone:
            inside.set()
            done.wait(60)

    with ThreadPoolExecutor() as pool:
        codebook(lm).apply(lm)
        other = pool.submit(use)
        inside.wait(60)
        try:
            refused(RuntimeError, r"another thread uses tiny-.*with lm\.alone", lm.model, input_ids=ids)
        finally:
            done.set()
        other.result()
        lm.model(input_ids=ids)


def test_step_by_step_by_hand(lm: LanguageModel) -> None:
    """With the cache an answer stays what it was; without one it is said that each step counts as a prompt."""
    with torch.no_grad(), codebook(lm).applied(lm):
        wanted = continued(lm, [SPOKEN])[0]
        ids = torch.tensor([lm.tokens(SPOKEN)])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            out, found = lm.model(input_ids=ids, use_cache=True), list[int]()
            for _ in wanted:
                found.append(int(out.logits[0, -1].argmax()))
                out = lm.model(input_ids=torch.tensor([found[-1:]]), past_key_values=out.past_key_values)
            lm.model(input_ids=ids[:, :3], use_cache=False)  # shorter: another prompt
        with pytest.warns(UserWarning, match="the tokens of the one before and one more"):
            lm.model(input_ids=ids[:, :4], use_cache=False)
    ends = [number for number, token in enumerate(found) if lm.is_end(token)]
    assert found[: ends[0] if ends else None] == wanted[: ends[0] if ends else None]


def test_a_repeated_cache_goes_on_as_each_row_by_itself(lm: LanguageModel) -> None:
    """Two prompts of other lengths, three continuations of each, and a memory that answers the second."""
    given = padded(lm, PROMPTS[1::-1])
    then = torch.tensor([[5, 6], [7, 8], [9, 5]] * 2)
    edit = codebook(lm)
    with edit.applied(lm), torch.no_grad():
        cache = DynamicCache()
        mask = given["attention_mask"]
        places = (mask.cumsum(1) - 1).clamp(0)
        lm.model(**given, position_ids=places, past_key_values=cache, use_cache=True)
        cache.batch_repeat_interleave(3)
        mask = torch.cat([mask.repeat_interleave(3, 0), torch.ones(6, 2, dtype=torch.long)], 1)
        places = places[:, -1:].repeat_interleave(3, 0) + torch.tensor([1, 2])
        more = {"attention_mask": mask, "position_ids": places, "past_key_values": cache, "use_cache": True}
        found = lm.model(input_ids=then, **more).logits
        for row, tokens in enumerate(then):
            alone = DynamicCache()
            lm.model(input_ids=torch.tensor([lm.tokens(PROMPTS[1 - row // 3])]), past_key_values=alone, use_cache=True)
            expected = lm.model(input_ids=tokens[None], past_key_values=alone, use_cache=True).logits[0]
            assert torch.allclose(found[row], expected, atol=1e-3), row


def test_a_batch_continues_each_prompt_so_many_times() -> None:
    """As where a caller repeats the cache of two prompts: transformers' `batch_repeat_interleave`."""
    rows = torch.tensor([3, 7])
    assert fitted(rows, 2).tolist() == [3, 7]
    assert fitted(rows, 6).tolist() == [3, 3, 3, 7, 7, 7]
    with pytest.raises(ValueError, match="continues 3 rows with a cache of 2 prompts"):
        fitted(rows, 3)
