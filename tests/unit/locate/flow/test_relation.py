import json
import random
from pathlib import Path

import pytest
import torch
from malformed_parts import refused
from relation_parts import SUBJECTS, known, states

from corrigenda import Fact, LanguageModel
from corrigenda.data.relation_facts import RelationFacts, group_by_relation, read_relations
from corrigenda.errors import RecordError
from corrigenda.linear_relations import affine_maps
from locate.flow.relation import RelationDecoding, linear_relation
from locate.flow.relation_results import RelationSurvey
from locate.lens.words import read_states
from locate.question import UnknownFactError


def made(lm: LanguageModel) -> torch.Tensor:
    """Puts an affine map in the place of the last block: o = A h + c at every position."""
    draw = torch.Generator().manual_seed(3)
    width = lm.memory(0).d_model
    a = torch.linalg.qr(torch.randn(width, width, generator=draw))[0] * 2
    c = torch.randn(width, generator=draw)
    lm.architecture.blocks[-1].forward = lambda hidden_states, *_, **__: hidden_states @ a.T + c
    return a


@pytest.mark.filterwarnings("ignore::UserWarning")  # what keeps no cache runs whole rows
def test_a_relation_that_is_linear_is_recovered(lm: LanguageModel) -> None:
    a = made(lm)
    facts = known(lm, "the language of {}")  # ends with the subject: nothing but A is between s and o
    found = linear_relation(lm, facts, samples=4, layers=(lm.n_layers - 1,), ranks=(1, 500))
    assert found.beta == 1.0
    assert torch.allclose(found.weight, a, atol=1e-4)
    assert bool(found.known.all())
    assert found.shares()["faithfulness"][0] == 1.0
    # A is a turn: its whole inverse makes each subject's state the other's, and its first direction does not.
    assert found.rank == lm.memory(0).d_model
    assert found.by_rank[1] == 1.0
    assert found.by_rank[0] < 1
    assert bool(found.causal.all())
    assert len(found.pairs) == len(found.tests)
    difference = torch.randn(len(a), generator=torch.Generator().manual_seed(5))
    assert torch.allclose(a @ found.delta(difference), difference, atol=1e-3)


def test_figures_are_those_of_the_parts(lm: LanguageModel) -> None:
    facts = known(lm)
    found = linear_relation(lm, facts, samples=4, layers=(1, 2), betas=(0.5, 2.0), ranks=(2, 8))
    drawn = list(facts)
    random.Random(0).shuffle(drawn)
    training, tests = drawn[:4], drawn[4:]
    assert found.training == tuple(fact.subject for fact in training)
    assert found.tests == tuple(fact.subject for fact in tests)
    samples = states(lm, training, [[*training[:i], *training[i + 1 :]] for i in range(4)], (0, 1, 2))
    maps = affine_maps(lm, samples)
    said = read_states(lm, samples.o).argmax(-1)
    best = {}
    for layer in (1, 2):
        for beta in (0.5, 2.0):
            held_out = beta * maps.held_out[:, layer] + maps.held_out_biases[:, layer]
            logits = read_states(lm, held_out).log_softmax(-1)
            hits = (logits.argmax(-1) == said).float().mean()
            assert found.held_out[(1, 2).index(layer), (0.5, 2.0).index(beta)] == hits
            best[layer, beta] = (float(hits), float(logits[range(4), said].mean()))
    assert (found.layer, found.beta) == max(best, key=lambda one: best[one])
    seen = states(lm, tests, [training] * len(tests), (found.layer,))
    s, top = seen.at(found.layer), read_states(lm, seen.o).argmax(-1)
    agree = read_states(lm, found.beta * s @ found.weight.T + found.bias).argmax(-1) == top
    assert torch.equal(found.faithful, agree)
    assert torch.equal(found.controls["identity"], read_states(lm, s).argmax(-1) == top)
    shift = (samples.o - samples.at(found.layer)).mean(0)
    assert torch.equal(found.controls["translation"], read_states(lm, s + shift).argmax(-1) == top)
    assert torch.equal(found.controls["bias"], read_states(lm, found.bias.expand_as(s)).argmax(-1) == top)
    assert set(found.controls) == {"identity", "translation", "bias", "embedding"}


def test_an_unknown_object_counts_for_accuracy_alone(lm: LanguageModel) -> None:
    facts = known(lm)
    drawn = list(facts)
    random.Random(0).shuffle(drawn)
    wrong = Fact(drawn[5].subject, drawn[5].prompt, None, "guitar" if drawn[5].target_true != "guitar" else "piano")
    facts = [wrong if fact.subject == wrong.subject else fact for fact in facts]
    found = linear_relation(lm, facts, samples=4, layers=(2,), name="tongue")
    assert found.accuracy == pytest.approx(5 / 6)
    place = found.tests.index(wrong.subject)
    assert all(place not in pair for pair in found.pairs)
    kept = found.faithful[found.known].float().mean()
    assert found.shares()["faithfulness"][0] == pytest.approx(float(kept))
    together = RelationSurvey.of([found, found])
    assert together.means["accuracy"][0] == pytest.approx(5 / 6)
    assert together.correlation is None
    assert "tongue" in together.figures


def test_what_is_no_relation_is_refused(lm: LanguageModel) -> None:
    facts = [Fact(subject, "the city of {} is", None, "Dutch", relation="r") for subject in SUBJECTS]
    one = RelationFacts("r", tuple(facts[:1]))
    with pytest.raises(ValueError, match="'r' has 1 sample with a subject of its own, and a map needs 3 or more"):
        RelationDecoding().find(lm, one)
    with pytest.raises(ValueError, match="'' has 0 samples with a subject of its own, and a map needs 3 or more"):
        linear_relation(lm, [])
    refused(ValueError, "no true object", linear_relation, lm, [*facts, Fact("blue", "the city of {} is", "Dutch")])
    refused(ValueError, "answer='top'", RelationDecoding().find, lm, RelationFacts("r", tuple(facts)), "top")
    with pytest.raises(UnknownFactError, match="none of 5 test samples of 'r'"):
        linear_relation(lm, [Fact(f.subject, f.prompt, None, "violin", relation="r") for f in facts], layers=(2,))
    with pytest.raises(ValueError, match="did you mean capital"):
        group_by_relation([Fact("France", "{} is", None, "Paris", relation="capital")], ["capitol"])
    refused(ValueError, "no fact names its relation", group_by_relation, [Fact("France", "{} is", None, "Paris")])
    refused(ValueError, "2 or more", RelationDecoding, samples=1)
    refused(ValueError, "leaves nothing to choose from", RelationDecoding, betas=())
    with pytest.raises(IndexError):
        RelationDecoding(layers=(99,)).check(lm)


def test_relations_are_read(tmp_path: Path) -> None:
    record = {
        "name": "country capital",
        "prompt_templates": ["The capital of {} is", "{}'s capital is"],
        "samples": [{"subject": "France", "object": "Paris"}, {"subject": "Italy", "object": "Rome"}],
    }
    file = tmp_path / "capital.json"
    file.write_text(json.dumps(record))
    facts = read_relations(tmp_path, template=1)
    assert [(fact.statement, fact.target_true, fact.relation) for fact in facts] == [
        ("France's capital is", "Paris", "country capital"),
        ("Italy's capital is", "Rome", "country capital"),
    ]
    assert next(iter(read_relations(file))).statement == "The capital of France is"
    for change, said in (
        ({"prompt_templates": ["The capital is"]}, "record 1, field 'prompt'"),
        ({"samples": []}, "field 'samples'"),
        ({"samples": [{"subject": "France"}]}, "needs 'subject' and 'object'"),
    ):
        file.write_text(json.dumps(record | change))
        refused(RecordError, said, read_relations, file)
    file.write_text("{")
    refused(RecordError, "cannot be read", read_relations, file)
    refused(FileNotFoundError, "no file of a relation", read_relations, tmp_path / "nothing")
