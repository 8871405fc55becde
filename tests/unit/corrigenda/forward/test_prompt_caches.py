import pytest
import tiny
import torch
from edits_parts import random_update

from corrigenda import Fact, LanguageModel, Origin, SideMemoryEdit
from corrigenda.forward.generation import decode
from corrigenda.forward.prompt_caches import PromptCaches
from corrigenda.forward.recording import record
from eval import EvalSettings, measure

PROMPTS = ["Ben", "the tower is in", "Thomas speaks", "red green blue one two three four", "the river"]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("family", tiny.DECODERS)
def test_it_goes_on_as_from_the_prompts(family: str) -> None:
    lm = tiny.build(family)
    tokens = [lm.tokens(prompt) for prompt in PROMPTS]
    caches = PromptCaches(lm, tokens)
    recordings = [record(lm, lm.batch(part), []) for part in (tokens[1:3], [*tokens[3:], tokens[0], [5, 6]])]
    caches.add(recordings[0])
    assert not caches.complete
    caches.add(recordings[1])
    assert caches.complete == (recordings[0].cache is not None)
    if caches.complete:
        assert caches.before_decoding(tokens)[0].tolist() == [[row[-1]] for row in tokens]
        assert decode(lm, tokens, 6, start=caches) == decode(lm, tokens, 6)
        assert decode(lm, tokens[:1], 6, start=caches) == decode(lm, tokens[:1], 6)


def test_where_rows_may_go_different_ways_there_is_none(lm: LanguageModel) -> None:
    memory, tokens = lm.memory(1), [lm.tokens(prompt) for prompt in PROMPTS]
    origin = Origin(lm.name, lm.fingerprint, "test")
    edit = SideMemoryEdit.of(memory, origin, torch.zeros(1, *memory.values.shape), torch.ones(1))
    with edit.applied(lm):
        caches = PromptCaches(lm, tokens)
        caches.add(record(lm, lm.batch(tokens), []))
        assert not caches.complete


def test_a_measurement_runs_no_prompt_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny.build("llama", scale=8.0)
    fact = Fact("Thomas", "the city of {} is", "Rome", "Berlin", neighbourhood=("the capital of Italy is", "Ben"))
    begun: list[tuple[int, ...]] = []
    before_decoding = PromptCaches.before_decoding

    def note(self: PromptCaches, prompts: list[list[int]]) -> object:
        found = before_decoding(self, prompts)
        begun.append(tuple(found[0].shape))
        return found

    monkeypatch.setattr(PromptCaches, "before_decoding", note)
    before = measure(lm, [fact], EvalSettings(perplexity_windows=0))
    with random_update(lm, 0.2).applied(lm):
        (after,) = measure(lm, [fact], EvalSettings(perplexity_windows=0, preservation_tokens=3), before)
        (again,) = measure(lm, [fact], EvalSettings(perplexity_windows=0, generate=False), before)
    assert begun == [(3, 1), (3, 1), (2, 1)]
    assert {len(tokens) for tokens in after.continuations.values()} == {10}
    assert after.continuations == again.continuations
    assert after.values["preservation"] == again.values["preservation"]
