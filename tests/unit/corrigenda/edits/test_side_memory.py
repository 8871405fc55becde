"""Side memories and codebooks: who answers, in which rows, and for how long."""

from dataclasses import replace

import pytest
import tiny
import torch
from batch_parts import distance
from edits_parts import low_rank, origin
from side_memory_parts import LAYER, PROMPTS, by_hand, codebook, greedy_by_hand, routed, score_by_hand, side_memory
from torch import Tensor
from transformers import DynamicCache

from corrigenda import LanguageModel, SideMemoryEdit, WrongModelError
from corrigenda.edits.routed import RoutedEdit, activated
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import forward_logits, record
from corrigenda.forward.shared import record_shared
from eval.scoring.probabilities import continues_as, score

TOLERANCE = 1e-4


@pytest.mark.parametrize("kind", ["side_memory", "codebook"])
@pytest.mark.parametrize("family", tiny.DECODER_KINDS)
def test_mixed_batches(family: str, kind: str) -> None:
    """Each row of a batch of edited and unrelated prompts is routed by itself."""
    lm = tiny.build(family)
    edit, answers = routed(kind, lm)
    assert sorted(answers) == [False, False, True, True]
    batch = lm.batch([lm.tokens(prompt) for prompt in PROMPTS])
    before = forward_logits(lm, batch)
    with edit.applied(lm):
        mixed = forward_logits(lm, batch)
    for row, prompt in enumerate(PROMPTS):
        ids = lm.tokens(prompt)
        expected = by_hand(lm, edit, ids, len(ids), answers[row])
        assert distance(mixed[row, : len(ids)], expected) < TOLERANCE
        changed = distance(before[row, : len(ids)], mixed[row, : len(ids)]) > 1e-2
        assert changed == answers[row]
    assert torch.equal(forward_logits(lm, batch), before)


def test_route_stays_for_what_follows(lm: LanguageModel) -> None:
    """A continuation that would cross the threshold by itself does not change who answers."""
    edit, answers = side_memory(lm)
    yes, no = answers.index(True), answers.index(False)
    answered, other = lm.tokens(PROMPTS[yes]), lm.tokens(PROMPTS[no])
    with edit.applied(lm):
        for first, then, said in ((answered, other, True), (other, answered * 2, False)):
            cache = DynamicCache()
            lm.model(input_ids=torch.tensor([first]), past_key_values=cache, use_cache=True)
            logits = lm.model(input_ids=torch.tensor([then]), past_key_values=cache, use_cache=True).logits[0]
            expected = by_hand_applied_off(lm, edit, first + then, len(first), said)[len(first) :]
            assert distance(logits, expected) < TOLERANCE


def by_hand_applied_off(lm: LanguageModel, edit: RoutedEdit, ids: list[int], n_prompt: int, answers: bool) -> Tensor:
    with lm.edits.suspended():
        return by_hand(lm, edit, ids, n_prompt, answers)


def test_cache_that_the_model_made_itself(lm: LanguageModel) -> None:
    """The model's own cache, handed back by the caller, continues its prompt."""
    edit, answers = side_memory(lm)
    row = answers.index(True)
    ids = lm.tokens(PROMPTS[row])
    with edit.applied(lm):
        first = lm.model(input_ids=torch.tensor([ids]), use_cache=True)
        then = lm.model(input_ids=torch.tensor([[5, 6]]), past_key_values=first.past_key_values, use_cache=True)
        expected = by_hand_applied_off(lm, edit, [*ids, 5, 6], len(ids), True)
        assert distance(then.logits[0], expected[-2:]) < TOLERANCE
        cache = DynamicCache()
        lm.model(input_ids=torch.tensor([[5, 6], [7, 8]]), past_key_values=cache, use_cache=True)
        cache.batch_select_indices(torch.tensor([0]))
        cache.batch_repeat_interleave(3)
        with pytest.raises(ValueError, match="which prompt a row belongs to"):
            lm.model(input_ids=torch.tensor([[5], [6], [7]]), past_key_values=cache, use_cache=True)


def test_one_token_prompts_are_the_models_own(lm: LanguageModel) -> None:
    memory = lm.memory(LAYER)
    edit = SideMemoryEdit.of(memory, origin(lm), torch.ones(1, memory.d_ffn, memory.d_model), torch.zeros(1))
    batch = lm.batch([[5], [5, 6]])
    before = forward_logits(lm, batch)
    with edit.applied(lm):
        after = forward_logits(lm, batch)
    # Not to the last bit: how a product is summed may depend on where its factors lie in memory.
    assert distance(after[0, 0], before[0, 0]) < TOLERANCE
    assert distance(after[1, 0], before[1, 0]) < TOLERANCE  # the first token is left alone
    assert distance(after[1, 1], before[1, 1]) > 1e-2


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "opt"])
@pytest.mark.parametrize("kind", ["side_memory", "codebook"])
def test_partial_forwards_keep_the_route(family: str, kind: str) -> None:
    """Targets scored on top of a recorded prompt, and in one pass with it: routed by the prompt alone."""
    lm = tiny.build(family)
    edit, answers = routed(kind, lm)
    target = "city of Paris , the capital of France"
    ids = lm.tokenizer(target)["input_ids"]
    with edit.applied(lm):
        scored = score(lm, [(prompt, [target, "Rome"]) for prompt in PROMPTS])
        batch = lm.batch([lm.tokens(p) + ids for p in PROMPTS], [len(lm.tokens(p)) for p in PROMPTS])
        passed = forward_logits(lm, batch)
        partial = PartialForward(lm, record(lm, batch, [LAYER]), LAYER, torch.tensor([1, 2, 3, 4]))
        from_middle = partial.rows(torch.tensor([3, 1, 0, 2])).logits()
        shared = record_shared(lm, batch, []).record([], batch.lengths - 1)
    for row, prompt in enumerate(PROMPTS):
        whole = lm.tokens(prompt) + ids
        n = len(whole) - len(ids)
        expected = by_hand(lm, edit, whole, n, answers[row])
        assert distance(passed[row, : len(whole)], expected) < TOLERANCE
        logs = expected.log_softmax(-1)
        wanted = [float(logs[n - 1 + i, token]) for i, token in enumerate(ids)]
        assert scored[row].targets[0].log_probs == pytest.approx(wanted, abs=TOLERANCE)
        place = [2, 1, 3, 0][row]
        start = row + 1
        assert distance(from_middle[place, : len(whole) - start], expected[start:]) < TOLERANCE
        assert distance(shared.logits[row], expected[-1]) < TOLERANCE


def test_greedy_answers_are_recognised(lm: LanguageModel) -> None:
    edit, answers = side_memory(lm)
    said = [greedy_by_hand(lm, edit, p, a, 4) for p, a in zip(PROMPTS, answers, strict=True)]
    before = [greedy_by_hand(lm, edit, p, False, 4) for p in PROMPTS]
    with edit.applied(lm):
        prompts = [lm.tokens(prompt) for prompt in PROMPTS]
        assert continues_as(lm, list(zip(prompts, said, strict=True))) == [True] * 4
        same = [left == right for left, right in zip(said, before, strict=True)]
        assert continues_as(lm, list(zip(prompts, before, strict=True))) == same
        assert not all(same)


def test_recording_older_than_the_edit(lm: LanguageModel) -> None:
    edit, _ = side_memory(lm)
    recording = record(lm, lm.batch([lm.tokens(PROMPTS[0])]), [])
    with edit.applied(lm), pytest.raises(ValueError, match="record the prompts again"):
        PartialForward(lm, recording, 0, torch.tensor([3])).logits()


@pytest.mark.parametrize("kind", ["side_memory", "codebook"])
def test_activated_tells_in_which_rows_an_edit_answered(lm: LanguageModel, kind: str) -> None:
    edit, expected = routed(kind, lm)
    with edit.applied(lm):
        with activated(lm) as seen:
            forward_logits(lm, lm.batch([lm.tokens(prompt) for prompt in PROMPTS[:3]]))
            with activated(lm) as inner:
                forward_logits(lm, lm.batch([lm.tokens(PROMPTS[3])]))
        forward_logits(lm, lm.batch([lm.tokens(PROMPTS[0])]))  # not seen any more
        assert list(seen.rows) == expected
        assert list(inner.rows) == expected[3:]
        assert seen.share == sum(expected) / 4
        with activated(lm) as seen:  # a prompt counts once, whatever follows it
            score(lm, [(prompt, ["Rome of the city", "Paris of the country"]) for prompt in PROMPTS])
        assert len(seen.rows) == 4
        assert sum(seen.rows) == sum(expected)
        with activated(lm) as seen:
            lm.generate(PROMPTS, 4)
        assert list(seen.rows) == expected


def test_activated_of_several_edits_and_of_none(lm: LanguageModel) -> None:
    with activated(lm) as seen:
        lm.generate(PROMPTS, 1)
    assert seen.rows == ()
    assert seen.share is None
    (one, answers), (other, others) = side_memory(lm), codebook(lm)
    with one.applied(lm), other.applied(lm), activated(lm) as seen:
        lm.generate(PROMPTS, 1)
    assert list(seen.rows) == [a or b for a, b in zip(answers, others, strict=True)]


def test_stacks_with_a_low_rank_edit(lm: LanguageModel) -> None:
    """Applied below or above it: the same answers as the two by hand."""
    edit, answers = side_memory(lm)
    below = low_rank(lm, 3, {LAYER: 1})
    batch = lm.batch([lm.tokens(prompt) for prompt in PROMPTS])
    with below.applied(lm):
        expected = [by_hand(lm, edit, lm.tokens(p), 0, a) for p, a in zip(PROMPTS, answers, strict=True)]
    for first, second in ((below, edit), (edit, below)):
        with first.applied(lm), second.applied(lm):
            found = forward_logits(lm, batch)
        for row, logits in enumerate(expected):
            assert distance(found[row, : len(logits)], logits) < TOLERANCE


def test_largest_score_is_asked(lm: LanguageModel) -> None:
    """Of several side memories the one with the largest D among those whose D is above their own threshold."""
    memory = lm.memory(LAYER)
    deltas = torch.randn(3, *memory.values.shape, generator=torch.Generator().manual_seed(4))
    ids = lm.tokens(PROMPTS[0])
    scores = torch.tensor([score_by_hand(lm, delta, ids) for delta in deltas])
    last, second, first = scores.argsort().tolist()
    for silent, expected in (((), first), ((first,), second), ((first, second), last), ((0, 1, 2), -1)):
        epsilons = 0.99 * scores
        epsilons[list(silent)] = 1.01 * scores[list(silent)]
        edit = SideMemoryEdit.of(memory, origin(lm), deltas, epsilons)
        with edit.applied(lm):
            recording = record(lm, lm.batch([ids]), [])
        assert recording.routes.decided[edit].tolist() == [expected]


def test_an_entry_answers_within_its_own_radius(lm: LanguageModel) -> None:
    edit, _ = codebook(lm)  # of the first and the third prompt
    far = replace(edit, keys=1.01 * edit.keys, radii=torch.tensor([0.0, 1e6]))
    with far.applied(lm), activated(lm) as seen:
        forward_logits(lm, lm.batch([lm.tokens(PROMPTS[0]), lm.tokens(PROMPTS[2])]))
    assert seen.rows == (False, True)


def test_edits_of_other_shapes(lm: LanguageModel) -> None:
    edit, _ = side_memory(lm)
    deep = SideMemoryEdit(edit.origin, 9, edit.module, edit.deltas, edit.epsilons)
    with pytest.raises(WrongModelError, match="layer 9"):
        deep.apply(lm)
    wide = SideMemoryEdit.of(lm.memory(LAYER), origin(lm), torch.zeros(1, 7, 5), torch.zeros(1))
    with pytest.raises(WrongModelError, match="reads 7 coefficients"):
        wide.apply(lm)
    assert len(lm.edits) == 0
