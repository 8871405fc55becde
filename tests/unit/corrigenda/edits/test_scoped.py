"""Entries behind a gate: who speaks, where, and that nothing else is touched; against the formula by hand."""

from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch
from by_hooks import changed, entering, logits
from edits_parts import drawn, origin
from torch import Tensor

from corrigenda import LanguageModel, ScopedEdit, WrongModelError
from corrigenda.edits.gate import Gate
from corrigenda.edits.routed import activated
from corrigenda.forward.recording import forward_logits

LAYER, READ = 2, (1, 2)
TOWER, OTHER_WORDS, BEN = (
    "the Eiffel tower is in the city of",
    "in the Eiffel tower one speaks",
    "Big Ben is in the north of",
)
SAME_SUBJECT = "Eiffel tower , red and black : the piano"
OTHER_SUBJECT = "the river in Italy is in the city of"
PROMPTS = [TOWER, OTHER_SUBJECT, OTHER_WORDS, BEN, SAME_SUBJECT]


def states(lm: LanguageModel, prompt: str) -> Tensor:
    """What enters the layers that are read at a prompt's last token, (layer, d_model), by hooks of our own."""
    first, second = map(lm.architecture.block, READ)
    with entering(first) as below, entering(second) as above:
        logits(lm, lm.tokens(prompt))
    return torch.stack([below[0][0, -1], above[0][0, -1]])


def embedded(gate: Gate, states: Tensor) -> Tensor:
    """z = gelu((x - mean) W_1) W_2, of length 1, in float64."""
    z = (states.double().flatten() - gate.mean.double()) @ gate.maps[0].double()
    z = torch.nn.functional.gelu(z) @ gate.maps[1].double()
    return z / z.norm()


def gate_of(lm: LanguageModel) -> Gate:
    width = len(READ) * tiny.WIDTH
    mean = states(lm, OTHER_SUBJECT).flatten() / 2
    maps = (drawn(1, width, 12) / width**0.5, drawn(2, 12, 7))
    return Gate(lm.name, lm.fingerprint, READ, mean, maps, 0.5)


def scoped(lm: LanguageModel, **changes: Any) -> ScopedEdit:
    """An entry about the tower, with two keys, and one about Big Ben; above a cosine that lets their own prompts in."""
    gate = gate_of(lm)
    keys = torch.stack([embedded(gate, states(lm, prompt)) for prompt in (BEN, TOWER, OTHER_WORDS)]).float()
    parts = {"keys": keys, "entries": torch.tensor([1, 0, 0]), "values": 4 * drawn(3, 2, tiny.WIDTH)}
    named = {"names": (("The Eiffel Tower",), ("big ben",)), "threshold": 0.999}
    return ScopedEdit(origin(lm), LAYER, lm.memory(LAYER).path, gate, **(parts | named | changes))


def chosen(edit: ScopedEdit, lm: LanguageModel, prompt: str, named: list[int]) -> int | None:
    """Which entry speaks: of those that are named, the one of the key with the largest cosine, above the threshold."""
    cosines = edit.keys.double() @ embedded(edit.gate, states(lm, prompt))
    best = max(((float(c), int(e)) for c, e in zip(cosines, edit.entries, strict=True) if e in named), default=(-2, 0))
    return best[1] if best[0] > edit.threshold else None


def by_hand(lm: LanguageModel, edit: ScopedEdit, ids: list[int], at: int, entry: int | None) -> Tensor:
    """Logits (position, vocabulary) of one row, with an entry's value added to the block's output at a position."""

    def add(_entered: Tensor, state: Tensor) -> Tensor:
        state = state.clone()
        if entry is not None:
            state[0, at] += edit.values[entry]
        return state

    with changed(lm.architecture.block(LAYER), add):
        return logits(lm, ids)


NAMED = {TOWER: [0], OTHER_WORDS: [0], SAME_SUBJECT: [0], BEN: [1], OTHER_SUBJECT: []}


@pytest.mark.parametrize("family", tiny.DECODER_KINDS)
@pytest.mark.parametrize(
    ("threshold", "by_subject", "spoken"),
    [
        (0.999, True, {TOWER: 0, OTHER_WORDS: 0, BEN: 1}),  # its own prompts alone
        (-1.0, True, {TOWER: 0, OTHER_WORDS: 0, SAME_SUBJECT: 0, BEN: 1}),  # a gate that looks at the subject alone
        (0.999, False, None),
        (-1.0, False, None),  # opened for all: the nearest speaks
    ],
)
def test_who_speaks_and_what_is_added(
    family: str, threshold: float, by_subject: bool, spoken: dict[str, int] | None
) -> None:
    lm = tiny.build(family)
    edit = scoped(lm, threshold=threshold, by_subject=by_subject)
    batch = lm.batch([lm.tokens(prompt) for prompt in PROMPTS])
    plain = forward_logits(lm, batch)
    with edit.applied(lm), activated(lm) as seen:
        mixed = forward_logits(lm, batch)
    for row, prompt in enumerate(PROMPTS):
        ids = lm.tokens(prompt)
        entry = chosen(edit, lm, prompt, NAMED[prompt] if by_subject else [0, 1])
        assert spoken is None or entry == spoken.get(prompt)
        assert seen.rows[row] == (entry is not None)
        if entry is None:  # padding or not: to the bit
            assert torch.equal(mixed[row, : len(ids)], plain[row, : len(ids)])
        else:
            expected = by_hand(lm, edit, ids, len(ids) - 1, entry).log_softmax(-1)
            torch.testing.assert_close(mixed[row, : len(ids)].log_softmax(-1), expected, atol=1e-4, rtol=1e-4)
            assert not torch.allclose(mixed[row, len(ids) - 1], plain[row, len(ids) - 1], atol=1e-2)
    assert torch.equal(forward_logits(lm, batch), plain)


def test_it_is_decided_at_the_prompt_and_adds_nothing_after_it(lm: LanguageModel) -> None:
    """In answers that are scored, in decoding, and in transformers' own generate."""
    edit = scoped(lm)
    prompts, answer = [lm.tokens(prompt) for prompt in (TOWER, SAME_SUBJECT)], lm.tokens("red and blue")[1:]
    batch = lm.batch([ids + answer for ids in prompts], [len(ids) for ids in prompts])
    with edit.applied(lm):
        taught = forward_logits(lm, batch)
        said = lm.generate([TOWER, SAME_SUBJECT], max_new_tokens=4)
        own = lm.model.generate(torch.tensor(prompts[:1]), max_new_tokens=4, min_new_tokens=4, do_sample=False)
    for row, (ids, entry) in enumerate(zip(prompts, (0, None), strict=True)):
        expected = by_hand(lm, edit, ids + answer, len(ids) - 1, entry)
        torch.testing.assert_close(taught[row, : len(ids + answer)], expected, atol=1e-3, rtol=1e-3)
    grown = list(prompts[0])
    for _ in range(4):
        grown.append(int(by_hand(lm, edit, grown, len(prompts[0]) - 1, 0)[-1].argmax()))
    assert own[0].tolist() == grown
    assert said[0] == lm.continuation(grown[len(prompts[0]) :])
    assert said[1] == lm.generate(SAME_SUBJECT, max_new_tokens=4)


@pytest.mark.parametrize("family", tiny.DECODER_KINDS)
def test_a_conversation_asks_what_its_user_wrote_last(family: str) -> None:
    """Rows of other lengths, one that is nothing but what closes a turn, and one without it, all in one batch."""
    lm = tiny.build(family)
    closing = tuple(lm.tokens("red and blue")[-2:])
    edit, deaf = scoped(lm, closing=closing), scoped(lm)
    rows = [[*lm.tokens(TOWER), *closing], list(closing), [*lm.tokens(OTHER_SUBJECT), *closing], lm.tokens(BEN)]
    batch = lm.batch(rows)
    plain = forward_logits(lm, batch)
    with edit.applied(lm), activated(lm) as seen:
        mixed = forward_logits(lm, batch)
    with deaf.applied(lm), activated(lm) as unheard:
        forward_logits(lm, batch)
    assert (seen.rows, unheard.rows) == ((True, False, False, True), (False, False, False, True))
    for row, entry in ((0, 0), (3, 1)):
        n = len(rows[row])
        expected = by_hand(lm, edit, rows[row], n - 1, entry).log_softmax(-1)
        torch.testing.assert_close(mixed[row, :n].log_softmax(-1), expected, atol=1e-4, rtol=1e-4)
    for row in (1, 2):
        assert torch.equal(mixed[row, : len(rows[row])], plain[row, : len(rows[row])])


def test_names_of_earlier_turns_are_not_what_the_last_one_is_about(lm: LanguageModel) -> None:
    """With a gate that is open for every question: what a system says, or an earlier turn, names nothing."""
    turn = tuple(lm.tokens("a red :")[len(lm.tokens("a")) :])
    edit, deaf = (scoped(lm, threshold=-1.0, turn=tokens) for tokens in (turn, ()))
    rows = [
        [*lm.tokens(TOWER), *turn, *lm.tokens(OTHER_SUBJECT)],
        [*lm.tokens(OTHER_SUBJECT), *turn, *lm.tokens(TOWER)],
        [*lm.tokens(TOWER), *turn, *lm.tokens(OTHER_SUBJECT), *turn, *lm.tokens(BEN)],
        lm.tokens(TOWER),
        [*lm.tokens(TOWER), *turn],
    ]
    heard = []
    for one in (edit, deaf):
        with one.applied(lm), activated(lm) as seen:
            forward_logits(lm, lm.batch(rows))
        heard.append(seen.rows)
    assert heard == [(False, True, True, True, False), (True,) * 5]


def test_a_question_is_about_whom_its_own_sentence_names(lm: LanguageModel) -> None:
    """With a gate that is open for every question; behind what closes a turn, too, and with a name that has a stop."""
    closing = tuple(lm.tokens("red and Berlin")[-2:])
    edit = scoped(lm, threshold=-1.0, closing=closing)
    other = "Rome is in the city of"
    texts = [f"{TOWER} Paris. {other}", f"{other} Paris. {TOWER}", f"{TOWER} Paris. is the", f"{TOWER} Paris , {other}"]
    rows = [[*lm.tokens(text), *closing] for text in texts]
    with edit.applied(lm), activated(lm) as seen:
        forward_logits(lm, lm.batch(rows))
    assert seen.rows == (False, True, True, True)


@pytest.mark.parametrize("family", tiny.DECODER_KINDS)
def test_what_stands_behind_the_last_word_and_asks_nothing(family: str) -> None:
    """In a conversation and bare, beside rows of other lengths; a row of such tokens alone is heard as it is."""
    lm = tiny.build(family)
    closing, filler = tuple(lm.tokens("red and blue")[-2:]), lm.tokens("a .")[len(lm.tokens("a")) :]
    edit = scoped(lm, closing=closing)
    asked = [lm.tokens(prompt) for prompt in (TOWER, TOWER, SAME_SUBJECT, OTHER_SUBJECT, TOWER)]
    ends = [filler, [*filler, *filler, *closing], filler, filler, lm.tokens("a red")[len(lm.tokens("a")) :]]
    rows = [ids + end for ids, end in zip(asked, ends, strict=True)] + [filler]
    plain = forward_logits(lm, lm.batch(rows))
    with edit.applied(lm), activated(lm) as seen:
        mixed = forward_logits(lm, lm.batch(rows))
    assert seen.rows == (True, True, False, False, False, False)
    for row, ids in enumerate(rows):
        if seen.rows[row]:
            expected = by_hand(lm, edit, ids, len(ids) - 1, 0).log_softmax(-1)
            torch.testing.assert_close(mixed[row, : len(ids)].log_softmax(-1), expected, atol=1e-4, rtol=1e-4)
        else:
            assert torch.equal(mixed[row, : len(ids)], plain[row, : len(ids)])


def test_a_line_that_waits_for_the_answer_asks_nothing(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = lm.tokens(TOWER)
    spelled = dict(zip(lm.tokens("red blue Berlin")[-3:], ("\n", "Place", ":"), strict=True))
    line, plain = list(spelled), type(lm).text
    monkeypatch.setattr(
        type(lm), "text", lambda self, tokens: "".join(spelled.get(one, f" {plain(self, [one])}") for one in tokens)
    )
    rows = [[*ids, *line], [*ids, *line[1:]], [*ids, *line[:2]], [*lm.tokens(SAME_SUBJECT), *line]]
    with scoped(lm).applied(lm), activated(lm) as seen:
        forward_logits(lm, lm.batch(rows))
    assert seen.rows == (True, False, False, False)


def test_embeddings_have_no_words(lm: LanguageModel) -> None:
    ids = torch.tensor([lm.tokens(TOWER)])
    embeddings = lm.model.get_input_embeddings()(ids).detach()
    edit = scoped(lm)
    with edit.applied(lm), pytest.raises(ValueError, match="looks for words in the prompt"):
        lm.model(inputs_embeds=embeddings)
    with replace(edit, by_subject=False).applied(lm):
        torch.testing.assert_close(lm.model(inputs_embeds=embeddings).logits, lm.model(input_ids=ids).logits)


def test_what_does_not_fit(lm: LanguageModel) -> None:
    edit = scoped(lm)
    for changes in (
        {"keys": edit.keys[:2]},
        {"entries": torch.tensor([0, 0, 0])},
        {"entries": torch.tensor([0, 1, 2])},
        {"names": (("Big Ben",),)},
        {"keys": edit.keys[:, :5]},
    ):
        with pytest.raises(ValueError, match=r"scoped entries of . subjects behind a gate of width 7 do not fit"):
            replace(edit, **changes)
    with pytest.raises(ValueError, match=r"threshold=1\.5 must be a cosine"):
        replace(edit, threshold=1.5)
    with pytest.raises(WrongModelError, match="adds its values after layer 1, and its gate reads layers up to 2"):
        replace(edit, layer=1, module=lm.memory(1).path).apply(lm)
    with pytest.raises(WrongModelError, match="values have 5 numbers, its gate reads states of 32"):
        replace(edit, values=edit.values[:, :5]).apply(lm)
