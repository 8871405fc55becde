import dataclasses
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from editors_parts import FACTS, NAMES, PLAYS, SMALL, TONGUE, TOWER, bits, editor, said, same_bits
from interventions_parts import hooks
from rome_parts import build

from corrigenda import Edit, EditRefusedError, Fact, LanguageModel, WeightEdit
from corrigenda.disturbance import disturbance, known
from corrigenda.edits.context import TextEdit
from corrigenda.errors import UnsupportedModelError
from corrigenda.forward.partial import PartialForward
from editing import EDITORS, prepare
from editing.shared.layers import named_layers

pytestmark = pytest.mark.filterwarnings("ignore")
EXTENDING = [name for name in NAMES if hasattr(EDITORS[name], "extend")]
INSERTING = [name for name in EDITORS.declared if name in NAMES and name not in ("none", "enhance", "suppress")]
"""What needs a new object; of presets their editor stands."""
OF_WEIGHTS = [
    *("rome", "memit", "suit", "alphaedit", "emmet"),
    *("ultraedit", "mend", "malmen", "finetune", "crispedit", "lora", "adalora"),
]
WISE = [name for name in EDITORS.declared if name.startswith("wise")]
CAUSAL = [*OF_WEIGHTS, "shift", "grace", "wise_whitened", "memoir", "t_patcher", "horen", "serac"]


@dataclasses.dataclass
class Case:
    """An editor's edit of two facts, and the model before it; whether nothing but weights changed while it was made."""

    name: str
    lm: LanguageModel
    before: dict[str, torch.Tensor]
    plain: torch.Tensor
    edit: Any
    left: bool


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest, cache: Path) -> Case:
    lm = build()
    before, plain, others = bits(lm), said(lm), beside_weights(lm)
    # A target that another editor left there is the same to rounding, and bits are compared below.
    shutil.rmtree(cache / "targets", ignore_errors=True)
    edit = editor(request.param).edit(lm, FACTS[:2])
    return Case(request.param, lm, before, plain, edit, beside_weights(lm) == others)


def beside_weights(lm: LanguageModel) -> list[Any]:
    """What a training may leave in a model: attributes, modules, what is trained; and torch's own generator."""
    trained = [one.requires_grad for one in lm.model.parameters()]
    return [set(vars(lm.model)), [*map(id, lm.model.modules())], trained, torch.random.get_rng_state().tolist()]


def changes(edit: Any) -> Any:
    """What an edit consists of, as far as it can be compared by bits."""
    return {name: tensor.clone() for name, tensor in edit._tensors().items()} | {"settings": edit._settings()}


def equal(left: Any, right: Any) -> bool:
    left, right = changes(left), changes(right)
    return left.keys() == right.keys() and all(
        torch.equal(value, right[name]) if isinstance(value, torch.Tensor) else value == right[name]
        for name, value in left.items()
    )


def test_every_editor_has_small_settings() -> None:
    assert SMALL.keys() | {"random", "saved"} == set(EDITORS.declared)


def test_the_model_is_left_as_it_was(case: Case) -> None:
    assert same_bits(case.lm, case.before)
    assert case.left
    assert hooks(case.lm) == 0
    assert not case.lm.edits
    assert torch.is_grad_enabled()
    assert torch.equal(said(case.lm), case.plain)


def test_what_is_applied_changes_what_it_touches_and_leaves_no_trace(case: Case) -> None:
    lm, edit = case.lm, case.edit
    with edit.applied(lm):
        places = {place if isinstance(place, int) else place[0] for place in edit.touched}
        written = {name for name, tensor in lm.model.state_dict().items() if not torch.equal(tensor, case.before[name])}
        own = {f"{lm.memory(layer).path.removesuffix('.weight')}.weight" for layer in places}
        assert written == (own if edit.in_weights else set())
        if isinstance(edit, WeightEdit):
            for layer in edit.changed:
                torch.testing.assert_close(
                    lm.memory(layer).values, values(lm, case.before, layer) + edit.delta(layer), atol=1e-5, rtol=1e-5
                )
        assert torch.equal(said(lm), case.plain) == (case.name == "none" or not answers(edit))
    assert same_bits(lm, case.before)
    assert torch.equal(said(lm), case.plain)
    assert hooks(lm) == 0


def values(lm: LanguageModel, before: dict[str, torch.Tensor], layer: int) -> torch.Tensor:
    memory = lm.memory(layer)
    weight = before[f"{memory.path.removesuffix('.weight')}.weight"]
    return weight if memory.transposed else weight.T


def answers(edit: Any) -> bool:
    """Whether a side memory answers any prompt at all: after few steps its threshold may be above all of them."""
    epsilons = getattr(edit, "epsilons", None)
    return epsilons is None or bool(epsilons.isfinite().any())


def test_the_report(case: Case) -> None:
    origin = case.edit.origin
    assert (origin.model, origin.fingerprint) == (case.lm.name, case.lm.fingerprint)
    assert origin.editor == editor(case.name).name
    assert list(origin.facts) == FACTS[:2]
    if case.name != "none" and not isinstance(case.edit, TextEdit):  # which change no weight, and are not looked at
        assert len(origin.report) == 2
        found = disturbance(case.lm, case.edit)
        assert known(case.edit) == found
        assert origin.report[-1]["disturbance"] == {"nats": found.nats, "kl": found.kl, "beyond": found.beyond}
        assert not any("refused" in figures for figures in origin.report)
    assert case.lm.name in case.edit.describe()


def test_it_is_the_same_from_the_disk(case: Case, tmp_path: Path) -> None:
    """zjunlp/EasyEdit#375: edits beside the weights could not be saved, or came back without their routing."""
    case.edit.save(tmp_path)
    loaded = Edit.load(tmp_path)
    assert type(loaded) is type(case.edit)
    assert equal(loaded, case.edit)
    assert loaded.origin.facts == case.edit.origin.facts
    assert loaded.origin.report == case.edit.origin.report
    with case.edit.applied(case.lm):
        expected = said(case.lm)
    with loaded.applied(case.lm):
        assert torch.equal(said(case.lm), expected)


@pytest.mark.parametrize(("name", "family"), [*((name, "gpt2") for name in NAMES), ("rome", "llama")])
def test_a_bfloat16_model(name: str, family: str) -> None:
    """Computed in float32 and more; what is written is the values of float32 with the update, rounded once."""
    lm = build(family)
    lm.model.bfloat16()
    before, plain = bits(lm), said(lm)
    edit = editor(name).edit(lm, FACTS[:2])
    assert same_bits(lm, before)
    assert all(value.dtype != torch.bfloat16 for value in edit._tensors().values())
    with edit.applied(lm):
        if isinstance(edit, WeightEdit):
            layer = min(edit.changed, default=None)
            if layer is not None:
                expected = (values(lm, before, layer).float() + edit.delta(layer)).bfloat16()
                torch.testing.assert_close(lm.memory(layer).values, expected, rtol=2**-7, atol=1e-6)
        assert bool(said(lm).isfinite().all())
    assert same_bits(lm, before)
    assert torch.equal(said(lm), plain)


@pytest.mark.parametrize("case", [*SMALL, "random", "wise_paper"], indirect=True)
def test_the_same_seed_gives_the_same_bits(case: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever was drawn before: by the contexts it was another update each time (zjunlp/EasyEdit#164, #168)."""
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path))
    torch.manual_seed(4)
    chosen = editor(case.name)
    with torch.no_grad():
        assert equal(chosen.edit(build(), FACTS[:2]), case.edit)
        assert not torch.is_grad_enabled()
    if hasattr(chosen, "seed"):
        assert not equal(dataclasses.replace(chosen, seed=1).edit(case.lm, FACTS[:2]), case.edit)


# -- going on


@pytest.mark.parametrize("name", EXTENDING)
def test_it_goes_on_from_its_own_edit(name: str, tmp_path: Path) -> None:
    lm, chosen = build(), editor(name)
    before = bits(lm)
    first = chosen.edit(lm, FACTS[:2])
    own, reports = changes(first), list(first.origin.report)
    chosen.extend(lm, first, [dataclasses.replace(FACTS[0], target_new="London", id="later")])  # supersedes one of it
    both = chosen.extend(lm, first, [PLAYS])
    assert all(torch.equal(value, own[key]) for key, value in first._tensors().items())
    assert same_bits(lm, before)
    assert list(both.origin.facts) == FACTS
    assert list(both.origin.report[:2]) == reports
    assert len(both.origin.report) == 3
    assert isinstance(both, TextEdit) or known(both) == disturbance(lm, both)  # as a whole
    with first.applied(lm):
        applied = bits(lm)
        again = chosen.extend(lm, first, [PLAYS])
        assert list(lm.edits) == [first]
        assert same_bits(lm, applied)
    assert equal(again, both)
    assert known(again) == known(both)
    first.save(tmp_path)
    from_disk = chosen.extend(lm, Edit.load(tmp_path), [PLAYS])
    for key, value in changes(both).items():
        if isinstance(value, torch.Tensor):  # what is not saved is solved again, in another order of operations
            torch.testing.assert_close(from_disk._tensors()[key], value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", EXTENDING)
def test_what_it_does_not_go_on_from(name: str) -> None:
    lm, chosen = build(), editor(name)
    first = chosen.edit(lm, FACTS[:2])
    with pytest.raises(EditRefusedError, match="not on tiny-llama"):
        chosen.extend(tiny.build("llama", seed=1), first, [PLAYS])
    if first.touched:
        elsewhere = {"layers": (0,)} if "layers" in chosen.__dataclass_fields__ else {"layer": 0}
        with pytest.raises(EditRefusedError, match="this editor's layer is 0"):
            dataclasses.replace(chosen, **elsewhere).extend(lm, first, [PLAYS])
    other: Any = editor("suppress").edit(lm, FACTS[:2])
    with pytest.raises(EditRefusedError, match="edit, not from a coefficient edit"):
        chosen.extend(lm, other, [PLAYS])
    if name in OF_WEIGHTS:  # its weight, say, means something else to them
        other = dataclasses.replace(first, origin=dataclasses.replace(first.origin, editor="another"))
        with pytest.raises(EditRefusedError, match=f"goes on from an edit by {name}, not from one by another"):
            chosen.extend(lm, other, [PLAYS])
    if first.state is not None:
        with pytest.raises(EditRefusedError, match="no editor state"):
            chosen.extend(lm, dataclasses.replace(first, state=None), [PLAYS])
    with pytest.raises(EditRefusedError, match="no fact"):
        chosen.extend(lm, first, [])


# -- facts that contradict or repeat one another


@pytest.mark.parametrize("name", [name for name in EDITORS.declared if name not in ("none", "saved", "grace", *WISE)])
def test_only_the_last_word_is_edited(name: str, caplog: pytest.LogCaptureFixture) -> None:
    lm, chosen = build(), editor(name)
    again = dataclasses.replace(TONGUE, target_new=f"{TONGUE.target_new} ", target_true="Dutch", id="again")
    new = dataclasses.replace(TOWER, target_new="London", id="new")
    facts = [TOWER, TONGUE, again, new]
    expected = [{"superseded_by": "new"}, {"repeated_by": "again"}, {"repeats": "tongue"}, {"contradicts": "tower"}]
    words = {word for report in expected for word in report}
    with caplog.at_level(logging.WARNING):
        made = chosen.edit(lm, facts)
        assert "2 of 4 facts are left out of the edit: 1 are superseded by later ones, 1 are asked for" in caplog.text
        caplog.clear()
        assert equal(made, chosen.edit(lm, facts[2:]))
        assert caplog.text == ""
    edits = [(made, facts)]
    if name in EXTENDING:
        edits.append((chosen.extend(lm, chosen.edit(lm, [PLAYS]), facts), [PLAYS, *facts]))
    for edit, all_facts in edits:
        assert list(edit.origin.facts) == all_facts
        reports = [{key: report[key] for key in words & report.keys()} for report in edit.origin.report]
        assert reports[-4:] == expected


# -- what is refused, and leaves the model as it was


@pytest.mark.parametrize("name", [name for name in NAMES if name != "none"])
def test_no_fact_is_refused(name: str) -> None:
    with pytest.raises(EditRefusedError, match="no fact"):
        editor(name).edit(build(), [])


@pytest.mark.parametrize("name", [name for name in INSERTING if name not in ("erase_neurons", "update_neurons")])
def test_an_erasure_is_refused_by_name(name: str) -> None:
    erasure = dataclasses.replace(PLAYS, target_new=None)
    with pytest.raises(EditRefusedError, match="inserts and modifies; fact 'plays' asks to erase"):
        editor(name).edit(build(), [FACTS[0], erasure])


@pytest.mark.parametrize("name", CAUSAL)
def test_a_layer_that_is_not_there(name: str) -> None:
    chosen, lm = editor(name), build()
    elsewhere = {"layers": (9,)} if "layers" in chosen.__dataclass_fields__ else {"layer": 9}
    wrong = dataclasses.replace(chosen, **elsewhere)
    assert named_layers(wrong) == (9,)
    for call in (lambda: wrong.edit(lm, FACTS[:1]), lambda: prepare(wrong, lm)):
        with pytest.raises(IndexError, match="layer 9: the model has 4"):
            call()


@pytest.mark.parametrize("name", [*OF_WEIGHTS, "grace", "wise_whitened", "memoir", "t_patcher", "horen"])
def test_what_is_not_finite_is_refused_with_its_fact(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path))  # in which no target lies of the model as it was
    lm, chosen = build(), editor(name)
    prepare(chosen, lm)
    monkeypatch.setattr(lm, "_require_as_loaded", lambda changed: None)  # as if its file had it so
    lm.model.get_input_embeddings().weight.data[lm.tokens("Danielle")[0]] = torch.nan
    before = bits(lm)
    with pytest.raises(EditRefusedError, match=r"tongue.*finite|finite.*tongue"):
        chosen.edit(lm, FACTS[1:2])
    assert same_bits(lm, before)
    assert not lm.edits


@pytest.mark.parametrize(
    "name", [*OF_WEIGHTS[:5], "wise_whitened", "grace", "memoir", "t_patcher", "finetune", "lora", "adalora"]
)
def test_a_failure_in_the_middle_leaves_the_model_as_it_was(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lm, chosen = build(), editor(name)
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path))
    prepare(chosen, lm)
    before, others, calls, whole = bits(lm), beside_weights(lm), [], PartialForward.logits

    def failing(self: PartialForward, *args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("in the middle")
        return whole(self, *args, **kwargs)

    monkeypatch.setattr(PartialForward, "logits", failing)
    with pytest.raises(RuntimeError, match="in the middle"):
        chosen.edit(lm, FACTS)
    assert same_bits(lm, before)
    assert beside_weights(lm) == others
    assert hooks(lm) == 0
    assert not lm.edits


@pytest.mark.parametrize("name", CAUSAL)
def test_a_masked_model_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny.build("bert")
    monkeypatch.setattr(lm.model, "forward", None)
    with pytest.raises(UnsupportedModelError, match="is a masked one; take the neurons' editors, or a causal model"):
        editor(name).edit(lm, FACTS[:1])


@pytest.mark.parametrize("name", OF_WEIGHTS)
def test_quantised_weights_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lm, chosen = tiny.quantised(), editor(name)
    monkeypatch.setattr(lm.model, "forward", None)
    with pytest.raises(UnsupportedModelError, match="quantised"):
        chosen.edit(lm, FACTS[:1])
    if hasattr(chosen, "prepare"):
        with pytest.raises(UnsupportedModelError, match="quantised"):
            chosen.prepare(lm)


@pytest.mark.parametrize("name", ["grace", "memoir", "t_patcher"])
def test_beside_quantised_weights(name: str) -> None:
    [report] = editor(name).edit(tiny.quantised(), FACTS[:1]).origin.report
    assert report["loss"] < report["step_losses"][0]


LONG = Fact("Thomas", "{} plays the" + " red green" * 40, "guitar", id="long")


REFUSING = [*OF_WEIGHTS, "shift", "memoir", "t_patcher", "serac", "feature", "ike", "retrieval", "update_neurons"]


@pytest.mark.parametrize("name", REFUSING)
def test_a_fact_that_is_too_long_is_refused_alone(name: str) -> None:
    lm, chosen = build(), editor(name)
    with pytest.warns(UserWarning, match=r"the edit of fact 'long' is refused: .* tiny-llama reads at most 64"):
        edit = chosen.edit(lm, [FACTS[0], LONG, FACTS[1]])
    assert [fact.id for fact in edit.origin.facts] == ["tower", "long", "tongue"]
    assert ["refused" in report for report in edit.origin.report] == [False, True, False]
    assert equal(edit, chosen.edit(lm, FACTS[:2]))
    with pytest.raises(EditRefusedError, match="fact 'long': "):
        chosen.edit(lm, [LONG])


@pytest.mark.parametrize("name", ["grace", "wise_whitened"])
def test_a_fact_that_cannot_be_run_is_refused_alone(name: str) -> None:
    """They take facts one after another, and count them: what is refused stands last, so that the edits are equal."""
    lm, chosen = build(), editor(name)
    short = Fact("Thomas", "{}", "guitar", id="short")
    with (
        pytest.warns(UserWarning, match=r"fact 'long' is refused: .* tiny-llama reads at most 64"),
        pytest.warns(UserWarning, match=r"fact 'short' is refused: .* one token only"),
    ):
        edit = chosen.edit(lm, [*FACTS[:2], LONG, short])
    assert ["refused" in report for report in edit.origin.report] == [False, False, True, True]
    assert equal(edit, chosen.edit(lm, FACTS[:2]))
    with pytest.raises(EditRefusedError, match=r"fact 'long': .*; fact 'short': "):
        chosen.edit(lm, [LONG, short])
