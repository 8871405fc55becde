import dataclasses
from typing import Any

import pytest
import tiny
import torch
from by_hooks import coefficients
from wise_parts import BEN, EIFFEL, FACTS, TEXT, losses, mask, wise

from corrigenda import Fact, LanguageModel
from corrigenda.data.embedded import embedded_facts
from corrigenda.forward.recording import forward_logits, record
from corrigenda.moments.second_moment import second_moment
from editing.memory_based.wise.coordinates import Coordinates
from editing.memory_based.wise.margins import prompt_scores
from editing.memory_based.wise.unrelated import run_unrelated, unrelated_coefficients


def test_prompts_about_other_subjects_are_learned_to_be_left_alone(lm: LanguageModel) -> None:
    """The same words about subjects that nobody edits score lower with them in the loss; none is an edited subject."""
    subjects = [fact.subject for fact in embedded_facts()[::40]]
    prompts = [fact.prompt.format(subject) for fact in FACTS for subject in subjects]
    activated = {}
    for others in (0, 8):
        editor = wise(weight=0.05, other_subjects=others)
        edit = editor.edit(lm, FACTS)
        delta = edit.deltas[0]
        near = run_unrelated(lm, 2, [lm.tokens(prompt) for prompt in prompts])
        own = run_unrelated(lm, 2, [lm.tokens(fact.statement) for fact in FACTS])
        activated[others] = float(prompt_scores(delta, near).mean() / prompt_scores(delta, own).mean())
        assert len(edit.state.others) == (len(FACTS) if others else 0)
    assert activated[8] < activated[0]


def test_remembered_facts_stay_activated(lm: LanguageModel) -> None:
    """With them in the loss no fact scores much lower than beta asks for; without, an earlier one is."""
    beta = 6 * Coordinates.of(lm, 2, wise()).unit
    ended = {}
    for remembered in (0, 4):
        settings = {"shards": 1, "rho": 1.0, "edits_per_shard": 4, "replay": 0, "weight": 0.3, "stop": 1e-9}
        scale = {"alpha": beta / 24, "beta": beta, "gamma": beta / 2}
        edit = wise(**settings, **scale, remembered=remembered).edit(lm, FACTS)
        own = run_unrelated(lm, 2, [lm.tokens(fact.statement) for fact in FACTS[:-1]])
        ended[remembered] = float(prompt_scores(edit.deltas[0], own).min()) / beta
    assert ended[0] < 0.7
    assert ended[4] > 0.9


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        *((family, {}) for family in ("gpt2", "llama", "gemma2")),
        ("gemma2", {"variant": "retrieve"}),
        ("gpt2", {"batch_size": 2, "merge": "mean", "shards": 1, "edits_per_shard": 4}),
    ],
)
def test_edits_hold_and_others_do_not_change(family: str, changes: dict[str, Any]) -> None:
    lm = tiny.build(family)
    weights = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    editor = wise(**changes, weight=0.3)
    edit = editor.edit(lm, FACTS)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in lm.model.state_dict().items())
    sequences = editor.unrelated.sequences(lm)["text"]
    batch = lm.batch(sequences)
    before, alone = forward_logits(lm, batch), [forward_logits(lm, lm.batch([ids])) for ids in sequences]
    facts = lm.batch([lm.tokens(fact.statement) for fact in FACTS])
    old = losses(lm, FACTS)
    with edit.applied(lm):
        routes = record(lm, batch, []).routes.decided[edit]
        routed = record(lm, facts, []).routes.decided[edit]
        assert float((old - losses(lm, FACTS)).mean()) > 0.4
        quiet = batch.attention_mask.bool() & (routes < 0)[:, None]
        assert bool(quiet.any())
        torch.testing.assert_close(forward_logits(lm, batch)[quiet], before[quiet])
        # Without padding, which is left out only where nobody looks on, to the last bit.
        for row in (routes < 0).nonzero()[:, 0].tolist():
            assert torch.equal(forward_logits(lm, lm.batch([sequences[row]])), alone[row])
    # Every fact is answered: epsilon is below the smallest of their scores.
    assert bool((routed >= 0).all())
    assert len(edit.deltas) == (2 if changes.get("variant") == "retrieve" else 1)
    assert [report["shard"] for report in edit.origin.report] == (
        [0, 0, 0, 0] if changes.get("shards") == 1 else [0, 0, 1, 1]
    )


def test_a_side_memory_is_learned_with_the_others_in_view() -> None:
    """Next to its own memory, each fact (of the earlier memory and of the later one) scores lower in the other."""
    lm = tiny.build("gpt2")

    def too_high(with_others: bool) -> list[float]:
        """By how much D in the other memory is more than `margin` times D in its own, of each fact."""
        editor = wise(variant="retrieve", shards=1, with_others=with_others, weight=0.3, margin=0.5)
        edit = editor.edit(lm, FACTS)
        prompts = [lm.tokens(fact.statement) for fact in FACTS]
        with lm.memory(2).capture() as seen:
            record(lm, lm.batch(prompts), [])
        over = []
        for m, ids, report in zip(seen.coefficients, prompts, edit.origin.report, strict=True):
            D = [float((m[1 : len(ids)] @ delta).norm(dim=1).mean()) for delta in edit.deltas]
            over.append(max(0.0, D[1 - report["shard"]] / D[report["shard"]] - editor.margin))
        return over

    in_view, apart = too_high(True), too_high(False)
    # The earlier memory stays as it is: the later one has to score lower on its facts, and higher on its own.
    assert sum(in_view[:2]) < 0.7 * sum(apart[:2])
    assert sum(in_view[2:]) < 0.7 * sum(apart[2:])


def test_shards_stay_in_their_subspaces_and_the_bound_holds(lm: LanguageModel) -> None:
    editor = wise(max_norm=0.2)
    edit = editor.edit(lm, FACTS)
    coordinates = Coordinates.of(lm, 2, editor)
    shards = edit.state.shards
    for number, shard in enumerate(shards):
        assert not bool(shard[~mask(editor, number, shard.shape)].any())
        assert bool(shard.any())
        assert float(shard.norm()) <= 0.2 * coordinates.size * 1.001
    # The bound is what it says: the root mean square of || m Theta || over the text, against that of || m V ||.
    C, V = second_moment(lm, 2, TEXT).matrix, lm.memory(2).values.double()
    assert coordinates.size == pytest.approx(float(torch.trace(V.T @ C @ V).sqrt()), rel=1e-4)


@pytest.mark.parametrize("merge", ["ties", "mean"])
def test_a_shard_is_learned_with_the_others_in_place(lm: LanguageModel, merge: Any) -> None:
    """What the merged memory says is what was trained; of shards that were learned apart it says something else."""
    editor = wise(stop=0.001, edits_per_shard=2, replay=0, merge=merge)
    trained = {}
    for with_others in (True, False):
        edit = dataclasses.replace(editor, with_others=with_others).edit(lm, FACTS)
        open_ = dataclasses.replace(edit, epsilons=torch.zeros(1))
        before = losses(lm, FACTS[3:])[0]
        with open_.applied(lm):
            said = losses(lm, FACTS[3:])[0]
        assert said < before - 0.4
        reported = edit.origin.report[3]["loss"]
        trained[with_others] = abs(float(said) - reported) / reported
    assert trained[True] < 1e-3
    assert trained[False] > 0.05


def test_replay_reaches_the_facts_of_other_shards(lm: LanguageModel) -> None:
    """Learned with the others in place, a shard makes good what it costs their facts; without replay it does not."""
    kept = {}
    for replay in (0, 2):
        edit = wise(edits_per_shard=3, stop=0.001, replay=replay).edit(lm, FACTS)
        with dataclasses.replace(edit, epsilons=torch.zeros(1)).applied(lm):
            kept[replay] = float(losses(lm, FACTS[:3]).mean())
    assert kept[2] < kept[0]


def test_repeated_and_contradicting_facts(lm: LanguageModel) -> None:
    """The same fact takes no second place; of two that contradict each other the later wins, and this is counted."""
    other = dataclasses.replace(EIFFEL, id="", target_new="Berlin")
    again = dataclasses.replace(EIFFEL, id="again")
    editor = wise(edits_per_shard=1)
    edit = editor.edit(lm, [EIFFEL, BEN, again, other])
    reports = edit.origin.report
    assert reports[2]["repeats"] == 0
    assert "steps" not in reports[2]
    assert reports[3]["contradicts"] == 2
    assert reports[3]["shard"] == 0  # that of the fact it replaces: the two shards of one fact are full
    assert edit.state.contradictions == 1
    assert edit.state.held == (1, 3)
    with edit.applied(lm):
        wins, loses = losses(lm, [other, EIFFEL])
        assert wins < loses - 0.3
    later = editor.extend(lm, edit, [EIFFEL])
    assert later.state.contradictions == 2
    with later.applied(lm):
        loses, wins = losses(lm, [other, EIFFEL])
        assert wins < loses - 0.3


def test_a_subject_that_is_edited_is_left_alone_no_more(lm: LanguageModel) -> None:
    editor = wise(other_subjects=1, edits_per_shard=4)
    first = editor.edit(lm, FACTS[:2])
    (name, _), (other, m) = first.state.others
    assert name not in {fact.subject for fact in FACTS[:2]}
    again = editor.extend(lm, first, [dataclasses.replace(BEN, subject=name)])
    kept = [subject for subject, _ in again.state.others]
    assert kept[0] == other
    assert name not in kept
    assert len(kept) == 2
    assert torch.equal(again.state.others[0][1], m)


@pytest.mark.parametrize(
    ("facts", "margin", "where"), [(FACTS[:1], 0.95, "below"), (FACTS[:1], 0.7, "within"), (FACTS, 0.7, "above")]
)
def test_epsilon_lies_between_the_facts_and_what_is_unrelated(facts: list[Fact], margin: float, where: str) -> None:
    """Halfway between both, but not below the margin, and below every fact."""
    lm = tiny.build("llama")
    edit = wise(margin=margin).edit(lm, facts)
    own = [coefficients(lm, 2, lm.tokens(fact.statement))[1:].double() for fact in facts]
    scores = [float((m @ edit.deltas[0].double()).norm(dim=1).mean()) for m in own]
    [raw] = unrelated_coefficients(lm, 2, wise().unrelated).values()
    norms = torch.tensor([float((m.double() @ edit.deltas[0].double()).norm(dim=1).mean()) for m in raw])
    lowest, highest = min(scores), float(norms.quantile(0.99))
    expected = {"below": margin * lowest, "within": (highest + lowest) / 2, "above": lowest}[where]
    assert float(edit.epsilons[0]) == pytest.approx(expected, rel=1e-4)
    assert float(edit.epsilons[0]) < min(scores)
