import dataclasses
import itertools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import tiny
import torch
from by_hooks import coefficients
from editors_parts import bits, same_bits
from rome_parts import ROME, build
from stand_ins import FACTS
from torch import Tensor

import editing.locate_then_edit.moments
import editing.locate_then_edit.rome
import editing.locate_then_edit.solved
from corrigenda import Edit, Fact, LanguageModel, LowRankEdit, ValueEdit
from corrigenda.errors import SettingsError
from corrigenda.forward.recording import forward_logits
from corrigenda.moments.second_moment import SecondMoment
from corrigenda.moments.text import Text
from corrigenda.prompts import encode_target
from editing import AlphaEdit, EditRefusedError, Emmet, Memit, Rome, ValueSettings
from editing.locate_then_edit.closed_form import ClosedForm
from editing.locate_then_edit.history import KeyHistory, Solutions
from editing.locate_then_edit.prompt_run import run_prompts
from editing.locate_then_edit.prompts import build_prompts
from editing.locate_then_edit.solved import Batch, Solving
from editing.locate_then_edit.targets import old_values, solve_target_values
from editing.locate_then_edit.weighed import Weighed

PREFIXES = ("", "red green . ", "the river is in the north . ")

# Fit for random models, which need a longer way than trained ones; no fact stops early.
VALUE = ValueSettings(steps=4, lr=0.2, weight_decay=0.02, early_stop_loss=-1.0)

COMMON: dict[str, Any] = {
    "prefixes": PREFIXES,
    "value": VALUE,
    "refuse_norm": 1e9,
    "most_per_coefficient": 1.0,
    "alike": 0.999,  # in a random model other subjects have like keys, too
}
MEMIT = Memit(layers=(1, 2), ratio=None, weight=3.0, **COMMON)
ALPHA = AlphaEdit(layers=(1, 2), energy=0.3, ratio=None, weight=3.0, **COMMON)
EMMET = Emmet(layers=(1,), eps=0.1, **COMMON)
EDITORS: dict[str, ClosedForm] = {
    "memit": MEMIT,
    "memit_plain": dataclasses.replace(MEMIT, name="memit_plain", history=False),
    "memit_blue": dataclasses.replace(MEMIT, name="memit_blue", layers=(0, 1, 2), ends_only=True),
    "replay": dataclasses.replace(MEMIT, layers=(0, 1, 2), rule="replay"),
    "pmet": dataclasses.replace(MEMIT, name="pmet", site="attention_and_ffn", rule="root"),
    "alphaedit": ALPHA,
    "emmet": EMMET,
}
FAMILIES = pytest.mark.parametrize("family", ["gpt2", "llama"])


def moment_of(lm: LanguageModel, layer: int) -> SecondMoment:
    """A well-conditioned one: of random coefficients of which some vary together."""
    draw = torch.Generator().manual_seed(layer)
    d_ffn = lm.memory(layer).d_ffn
    mixing = torch.eye(d_ffn) + torch.randn(d_ffn, d_ffn, generator=draw) / d_ffn**0.5
    keys = torch.randn(4 * d_ffn, d_ffn, generator=draw, dtype=torch.float64) @ mixing.double()
    return SecondMoment(keys.T @ keys / len(keys), 4 * d_ffn, layer, Text())


lm = pytest.fixture(tiny.steep)


@pytest.fixture(autouse=True)
def second_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    def given(lm: LanguageModel, layers: Sequence[int], text: Text) -> dict[int, SecondMoment]:
        return {layer: moment_of(lm, layer) for layer in layers}

    monkeypatch.setattr(editing.locate_then_edit.moments, "second_moments", given)


def replayed_by_hand(
    lm: LanguageModel, facts: Sequence[Fact], layers: Sequence[int], first: Tensor
) -> dict[int, Tensor]:
    """What comes out after each layer where each fact's target stands after the first one, by whole forwards."""
    found: dict[int, list[Tensor]] = {layer: [] for layer in layers}
    for fact, target in zip(facts, first, strict=True):
        text = fact.statement
        end = len(lm.tokenizer(text[: text.rindex(fact.subject) + len(fact.subject)])["input_ids"]) - 1

        def put(_module: object, _args: object, output: Any, end: int = end, target: Tensor = target) -> None:
            (output[0] if isinstance(output, tuple) else output)[0, end] = target.float()

        handle = lm.architecture.block(layers[0]).register_forward_hook(put)
        with torch.no_grad():
            states = lm.model(**lm.tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states
        handle.remove()
        for layer in layers:
            found[layer].append(states[layer + 1][0, end].double())
    return {layer: torch.stack(rows) for layer, rows in found.items()}


def by_hand(lm: LanguageModel, editor: ClosedForm, facts: Sequence[Fact]) -> dict[int, Tensor]:
    """The updates by the formulas of the papers, dense, on keys and residuals of whole forwards."""
    prompts = build_prompts(lm, facts, PREFIXES, VALUE.kl_prompt, VALUE.kl_position)
    layers, last = list(editor.layers), editor.layers[-1]
    if editor.ends_only:
        layers = [layers[0], layers[-1]]
    attention = layers if editor.site == "attention_and_ffn" else []
    run = run_prompts(lm, prompts, layers, attention)
    targets = {n: solve_target_values(lm, run, n, VALUE, editor.site).values.double() for n in layers}
    if editor.rule == "replay":
        targets = replayed_by_hand(lm, facts, layers, targets[layers[0]])
    own = editor.ends_only or editor.rule == "replay"
    deltas: dict[int, Tensor] = {}
    for place, layer in enumerate(layers):
        for done, delta in deltas.items():
            lm.memory(done).add_to_values(delta.float())
        run = run_prompts(lm, prompts, [layer, last])
        left, aim = len(layers) - place, layer if own else last
        keys = torch.stack(
            [
                # The bare prompt counts as much as the two contexts together.
                (rows[0] + (rows[1] + rows[2]) / 2) / 2
                for rows in run.keys(layer)[prompts.rewriting].double().split(len(PREFIXES))
            ]
        )
        residuals = targets[aim] - old_values(run, aim, "block" if editor.site == "block" else "ffn").double()
        if not own:
            residuals = residuals / (left if editor.rule == "even" else left**0.5)
        for done, delta in deltas.items():
            lm.memory(done).add_to_values(-delta.float())
        moment = moment_of(lm, layer)
        C = moment.matrix
        one = torch.eye(len(C), dtype=torch.float64)
        C_ridged = C + editor.ridge * C.diagonal().mean() * one
        if isinstance(editor, Memit):
            assert editor.weight is not None
            deltas[layer] = torch.linalg.solve(editor.weight * C_ridged + keys.T @ keys, keys.T @ residuals)
        elif isinstance(editor, AlphaEdit):
            size, vectors = torch.linalg.eigh(C)
            basis = vectors[:, size.cumsum(0) <= editor.energy * size.sum()]
            P = basis @ basis.T
            assert editor.weight is not None
            deltas[layer] = torch.linalg.solve(P @ keys.T @ keys + editor.weight * one, P @ keys.T @ residuals)
        elif isinstance(editor, Emmet):
            inverse = torch.linalg.inv(C_ridged)
            gram = keys @ inverse @ keys.T
            soft = editor.eps * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
            deltas[layer] = inverse @ keys.T @ torch.linalg.inv(gram + soft) @ residuals
    return deltas


def difference(left: Tensor, right: Tensor) -> float:
    return float((left.double() - right.double()).norm() / right.double().norm())


def history(edit: Edit) -> KeyHistory:
    """What an edit goes on from."""
    assert isinstance(edit.state, KeyHistory)
    return edit.state


@pytest.mark.parametrize("name", EDITORS)
@FAMILIES
def test_updates_are_the_formulas(name: str, family: str) -> None:
    lm = build(family)
    editor = EDITORS[name]
    edit = editor.edit(lm, FACTS)
    expected = by_hand(lm, editor, FACTS)
    assert isinstance(edit, LowRankEdit)
    assert sorted(edit.changed) == sorted(expected)
    for layer, delta in expected.items():
        assert edit.factors[layer][0].shape[1] == len(FACTS)
        # Rounding of float32 forwards, which the layers before and the solver's steps amplify.
        assert difference(edit.delta(layer), delta) < 2e-3


@FAMILIES
def test_many_facts_become_a_whole_matrix(family: str) -> None:
    """48 or 128 coefficients: above half of that the edit has no factors."""
    lm = build(family)
    number = lm.memory(0).d_ffn // 2 + 1
    words = [word for word in tiny.WORDS if word.isalpha()]
    facts = [
        Fact(f"{words[n % 40]} {words[n // 40]}", "{} is located in the city of", words[n % 7]) for n in range(number)
    ]
    editor = Memit(layers=(1,), number=1, **COMMON | {"prefixes": ("",), "value": ValueSettings(steps=1), "alike": 1.0})
    edit = editor.edit(lm, facts[:-1])
    assert isinstance(edit, LowRankEdit)
    grown = editor.extend(lm, edit, facts[-1:])
    assert isinstance(grown, ValueEdit)
    assert len(grown.origin.facts) == len(grown.origin.report) == number
    assert isinstance(editor.edit(lm, facts), ValueEdit)


def test_a_failure_leaves_the_model_as_it_was(lm: LanguageModel) -> None:
    edit = MEMIT.edit(lm, FACTS[:1])
    before = bits(lm)
    with pytest.raises(EditRefusedError, match=r"layer 1 has .* times the norm"):
        dataclasses.replace(MEMIT, refuse_norm=1e-9).extend(lm, edit, FACTS[1:])
    assert same_bits(lm, before)


def given_targets(monkeypatch: pytest.MonkeyPatch, lm: LanguageModel, layers: Sequence[int]) -> None:
    """Targets of the unedited model for all facts, whatever is applied."""
    batch = Batch(FACTS, build_prompts(lm, FACTS, [""], VALUE.kl_prompt, VALUE.kl_position))
    solving = Solving([""], VALUE, "block", False)
    values, _ = solving.targets(lm, [batch], layers)
    place = {fact.id: number for number, fact in enumerate(FACTS)}

    def given(
        _self: object, _lm: object, batches: Sequence[editing.locate_then_edit.solved.Batch], _n: object
    ) -> object:
        rows = [place[fact.id] for one in batches for fact in one.facts]
        return {layer: found[rows] for layer, found in values.items()}, [{} for _ in rows]

    monkeypatch.setattr(Solving, "targets", given)


@FAMILIES
@pytest.mark.parametrize("method", ["memit", "alphaedit"])
def test_batches_with_history_are_one_batch(family: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = build(family)
    lm.model.double()
    given_targets(monkeypatch, lm, [1])
    editor = dataclasses.replace(EDITORS[method], layers=(1,), prefixes=("",))
    together = editor.edit(lm, FACTS)
    grown: Edit | None = None
    for fact in FACTS:
        grown = editor.extend(lm, grown, [fact])
    assert isinstance(grown, LowRankEdit)
    assert difference(grown.delta(1), together.delta(1)) < 1e-6
    assert [fact.id for fact in history(grown).facts] == [fact.id for fact in FACTS]
    plain = dataclasses.replace(editor, history=False)  # type: ignore[call-arg]
    forgetful: Edit | None = None
    for fact in FACTS:
        forgetful = plain.extend(lm, forgetful, [fact])
    assert isinstance(forgetful, LowRankEdit)
    assert difference(forgetful.delta(1), together.delta(1)) > 1e-3


@pytest.mark.parametrize(
    ("editor", "changes"),
    [
        *itertools.product((MEMIT, ALPHA), ({"history": False}, {"weight": 2.0}, {"ratio": 1.0, "weight": None})),
        (ALPHA, {"energy": 0.2}),
    ],
)
def test_what_the_first_facts_decided_cannot_be_changed(
    lm: LanguageModel, editor: Weighed, changes: dict[str, Any]
) -> None:
    edit, name = editor.edit(lm, FACTS[:1]), next(iter(changes))
    other = dataclasses.replace(editor, **changes)
    theirs, own = getattr(editor, name), getattr(other, name)
    with pytest.raises(EditRefusedError, match=f"was made with {name}={theirs}, this editor has {name}={own}; take"):
        other.extend(lm, edit, FACTS[1:2])


def test_a_superseded_fact_no_longer_counts(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    edit = MEMIT.edit(lm, FACTS[:2])
    later = dataclasses.replace(FACTS[0], target_new="Berlin", id="later")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        grown = MEMIT.extend(lm, edit, [later])
    state = history(grown)
    assert [fact.id for fact in state.facts] == ["tongue", "later"]
    torch.testing.assert_close(state.keys[1][0], history(edit).keys[1][1])
    assert state.n_written == 3


@pytest.mark.parametrize("editor", [MEMIT, ALPHA])
def test_what_is_known_of_earlier_facts_is_used_and_changes_nothing(
    lm: LanguageModel, editor: ClosedForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor = dataclasses.replace(editor, keep_targets=False)
    edit = editor.edit(lm, FACTS[:2])
    assert sorted(history(edit).solutions.systems) == [1, 2]
    bare = dataclasses.replace(history(edit), solutions=Solutions())
    solved: list[int] = []
    whole = SecondMoment.solve

    def counted(self: SecondMoment, keys: Tensor, ridge: float = 1e-6) -> Tensor:
        solved.append(len(keys))
        return whole(self, keys, ridge)

    monkeypatch.setattr(SecondMoment, "solve", counted)
    for fact in (FACTS[2], dataclasses.replace(FACTS[0], target_new="Berlin", id="later")):
        solved.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            grown = editor.extend(lm, edit, [fact])
            if fact is FACTS[2]:
                assert set(solved) == {1}  # C^-1 k of the new key alone
            plain = editor.extend(lm, dataclasses.replace(edit, state=bare), [fact])
        for layer in (1, 2):
            assert difference(grown.delta(layer), plain.delta(layer)) < 1e-5
            assert history(grown).solutions.systems[layer].n_keys == len(history(grown).facts)
        directions = history(grown).solutions.directions
        assert directions is not None
        torch.testing.assert_close(directions, history(plain).solutions.directions)
        assert len(directions) == len(history(grown).facts)


@pytest.mark.parametrize("family", ["llama", "gemma2", "granite", "olmo2", "glm4"])
def test_the_written_layer_says_what_was_solved_for(family: str) -> None:
    lm = build(family)
    editor = dataclasses.replace(MEMIT, layers=(2,), prefixes=("",), weight=1e-7)
    edit = editor.edit(lm, FACTS[:1])
    [solved] = edit.origin.report
    assert solved["nll"] < solved["step_losses"][0]
    batch = lm.batch([lm.tokens(FACTS[0].statement)])
    [target] = encode_target(lm.tokenizer, FACTS[0].statement, FACTS[0].target_new or "")
    prompts = build_prompts(lm, FACTS[:1], ("",), VALUE.kl_prompt, VALUE.kl_position)
    before = old_values(run_prompts(lm, prompts, [2]), 2)
    with edit.applied(lm):
        after = old_values(run_prompts(lm, prompts, [2]), 2)
    with lm.memory(2).add(after - before, prompts.subject[:1]):
        said = forward_logits(lm, batch, batch.lengths - 1).log_softmax(-1)[0, target]
    assert -float(said) == pytest.approx(solved["nll"], abs=1e-3)


@pytest.mark.parametrize("facts", [1, 2])
def test_the_ratio_says_how_much_the_text_weighs_at_a_hundred_facts(lm: LanguageModel, facts: int) -> None:
    editor = dataclasses.replace(MEMIT, ratio=0.25, weight=None, layers=(1,))
    edit = editor.edit(lm, FACTS[:facts])
    keys = history(edit).keys[1].double()
    energy_of_hundred = 100 * float((keys * keys).sum()) / facts
    trace = float(moment_of(lm, 1).matrix.trace())
    assert history(edit).weights[1] * trace == pytest.approx(0.25 * energy_of_hundred)
    grown = editor.extend(lm, edit, FACTS[facts:])
    assert history(grown).weights == history(edit).weights  # what goes on from an edit keeps it


def test_a_null_space_update_keeps_its_first_weight(lm: LanguageModel) -> None:
    """L2 = ratio * mean |P k|^2 of the first facts, by the projector."""
    editor = dataclasses.replace(ALPHA, ratio=0.25, weight=None, layers=(1,))
    edit = editor.edit(lm, FACTS[:2])
    size, vectors = torch.linalg.eigh(moment_of(lm, 1).matrix)
    basis = vectors[:, size.cumsum(0) <= editor.energy * size.sum()]
    projected = history(edit).keys[1].double() @ basis @ basis.T
    assert history(edit).weights[1] == pytest.approx(0.25 * float(projected.square().sum()) / 2)
    grown = editor.extend(lm, edit, FACTS[2:])
    assert history(grown).weights == history(edit).weights


def test_two_ways_to_say_a_weight() -> None:
    for cls, value in itertools.product((Memit, AlphaEdit), (1.0, None)):
        with pytest.raises(ValueError, match=r"give one of them, and null for the other"):
            cls(ratio=value, weight=value)


# -- layers


@pytest.mark.parametrize(
    "editor",
    [
        dataclasses.replace(ROME, layer=-1),
        dataclasses.replace(EMMET, layers=(3,), site="ffn"),
        dataclasses.replace(MEMIT, layers=(2, 3), site="attention_and_ffn"),
    ],
)
def test_in_the_last_layer_only_what_ends_with_its_subject_is_written(lm: LanguageModel, editor: Rome | Memit) -> None:
    """What is written at a subject's last token there is read by no later token."""
    ends = Fact("Danielle Darrieux", "the mother tongue of {}", "Italy", "French")
    with pytest.warns(UserWarning, match=f"fact {FACTS[0].id!r} is refused: layer 3 is the last of tiny-llama"):
        edit = editor.edit(lm, [FACTS[0], ends])
    assert ["refused" in report for report in edit.origin.report] == [True, False]
    assert edit.origin.report[1]["step_losses"][0] > edit.origin.report[1]["step_losses"][-1]


def test_which_layers_are_written() -> None:
    lm = build("llama")  # of four layers
    assert Memit().resolved_layers(lm) == (0, 1)
    assert Memit(layers=(2, -3, 0)).resolved_layers(lm) == (0, 1, 2)  # in any order: from the bottom
    assert Memit(layers=(2, 1, 0), ends_only=True).resolved_layers(lm) == (0, 2)
    assert Memit(layers=(1,), ends_only=True).resolved_layers(lm) == (1,)
    assert Memit(depth=1.0, number=2).resolved_layers(lm) == (1, 2)  # a block's output is read by a later block
    assert Emmet(depth=1.0).resolved_layers(lm) == (3,)
    with pytest.raises(ValueError, match=r"layers=\[1, -3\] name a layer twice"):
        Memit(layers=(1, -3)).resolved_layers(lm)
    with pytest.raises(ValueError, match="layer 3 is the last of tiny-llama"):
        Memit(layers=(2, 3)).resolved_layers(lm)
    with pytest.raises(IndexError):
        Memit(layers=(7,)).resolved_layers(lm)


# -- what is said before the damage, and bad input


def test_facts_of_nearly_the_same_key_are_named(lm: LanguageModel) -> None:
    twin = Fact("the Eiffel tower", "{} stands in the country of", "Italy", "France", id="twin")
    facts = [FACTS[0], FACTS[1], twin]
    with pytest.warns(UserWarning, match=r"nearly the same key .* 'tower' and 'twin' \(1\.00\)"):
        edit = MEMIT.edit(lm, facts)
    report = edit.origin.report
    assert (report[0]["alike"], report[2]["alike"]) == (["twin"], ["tower"])
    assert "alike" not in report[1]
    first = MEMIT.edit(lm, facts[:2])
    with pytest.warns(UserWarning, match="'tower' and 'twin'"):
        grown = MEMIT.extend(lm, first, [twin])
    assert grown.origin.report[2]["alike"] == ["tower"]


@pytest.mark.parametrize("ridge", [0.0, 3.0])
@pytest.mark.parametrize("go_on", [None, "known", "lost"])
def test_how_alike_keys_are_is_the_cosine_in_the_metric_of_the_ridged_moment(
    ridge: float, go_on: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against C + ridge * (mean of C's diagonal) inverted, on the keys of whole forwards."""
    lm, facts = build("llama"), FACTS[:2]
    moment = moment_of(lm, 1)
    moment = SecondMoment(20 * moment.matrix, moment.tokens, 1, moment.text)  # its mean diagonal is far from 1
    monkeypatch.setattr(editing.locate_then_edit.moments, "second_moments", lambda *_: {1: moment})
    keys = []
    for fact in facts:
        text = fact.statement[: fact.statement.index(fact.subject) + len(fact.subject)]
        keys.append(coefficients(lm, 1, lm.tokenizer(text)["input_ids"])[-1].double())
    C = moment.matrix
    inverse = torch.linalg.inv(C + ridge * C.diagonal().mean() * torch.eye(len(C), dtype=torch.float64))
    left, right = keys
    expected = float(left @ inverse @ right / ((left @ inverse @ left) * (right @ inverse @ right)).sqrt())
    assert 0.01 < expected < 0.99
    common = COMMON | {"prefixes": ("",), "value": ValueSettings(steps=1)}
    for limit, named in ((expected - 1e-3, True), (expected + 1e-3, False)):
        editor = Memit(layers=(1,), ridge=ridge, **common | {"alike": limit})
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            if go_on is None:
                editor.edit(lm, facts)
            else:
                first = editor.edit(lm, facts[:1])
                if go_on == "lost":  # as from the disk, where no directions are kept
                    first = dataclasses.replace(
                        first, state=dataclasses.replace(history(first), solutions=Solutions({}, None))
                    )
                editor.extend(lm, first, facts[1:])
        texts = [str(one.message) for one in said if "nearly the same key" in str(one.message)]
        assert len(texts) == named, (texts, expected)
        assert all(f"({expected:.2f})" in text for text in texts)


def test_more_facts_than_a_layer_bears_are_said(lm: LanguageModel) -> None:
    editor = dataclasses.replace(MEMIT, most_per_coefficient=2.5 / 48)
    edit = editor.edit(lm, FACTS[:2])
    with pytest.warns(UserWarning, match=r"3 facts in layers of 48 coefficients are 0\.06 for each, more than 0\.05"):
        editor.extend(lm, edit, FACTS[2:])


@pytest.mark.parametrize(("ratio", "advised"), [(1.0, True), (10.0, False), (None, False)])
def test_what_memit_is_advised_to_do_about_many_facts(ratio: float | None, advised: bool) -> None:
    weight = None if ratio is not None else 1.0
    editor = dataclasses.replace(MEMIT, most_per_coefficient=1 / 48, ratio=ratio, weight=weight)
    with pytest.warns(UserWarning, match="for each, more than") as said:
        editor.edit(build("llama"), FACTS[:2])
    [text] = [str(one.message) for one in said if "for each, more than" in str(one.message)]
    assert ("ratio=10 held more" in text) == advised


@pytest.mark.parametrize(("which", "said"), [("values", "target"), ("loss", "loss")])
def test_a_target_that_is_not_finite_is_refused_by_name(
    lm: LanguageModel, which: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = MEMIT.edit(lm, [FACTS[0], FACTS[2]])
    whole = editing.locate_then_edit.solved.solve_target_values

    def wrecked(*args: object) -> object:
        solved = whole(*args)  # type: ignore[arg-type]
        getattr(solved, which)[1] = float("nan")
        return solved

    monkeypatch.setattr(editing.locate_then_edit.solved, "solve_target_values", wrecked)
    editor = dataclasses.replace(MEMIT, keep_targets=False)
    with pytest.warns(UserWarning, match=f"the edit of fact 'tongue' is refused: its {said} is not finite"):
        edit = editor.edit(lm, FACTS)
    assert ["refused" in figures for figures in edit.origin.report] == [False, True, False]
    assert difference(edit.delta(1), alone.delta(1)) < 1e-3
    monkeypatch.setattr(
        editing.locate_then_edit.solved,
        "solve_target_values",
        lambda *args: dataclasses.replace(whole(*args), values=torch.full((1, tiny.WIDTH), float("nan"))),
    )
    with (
        pytest.warns(UserWarning, match="its target is not finite"),
        pytest.raises(EditRefusedError, match="no fact has a finite target and loss"),
    ):
        editor.edit(lm, FACTS[:1])


@pytest.mark.parametrize("editor", [MEMIT, ROME])
def test_a_singular_second_moment_is_said(lm: LanguageModel, editor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(7, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def few(lm: LanguageModel, layers: Sequence[int], text: Text) -> Mapping[int, SecondMoment]:
        return {layer: SecondMoment(rows.T @ rows / 7, 7, layer, text) for layer in layers}

    monkeypatch.setattr(editing.locate_then_edit.moments, "second_moments", few)
    with pytest.warns(UserWarning, match=r"layer 1 is rank-deficient: it is taken over 7 tokens"):
        assert editor.edit(lm, FACTS[:1]).delta(1).isfinite().all()
    with (
        pytest.warns(UserWarning, match="rank-deficient"),
        pytest.raises(ValueError, match=r"layer 1 .* is singular with the ridge 0"),
    ):
        dataclasses.replace(editor, ridge=0.0).edit(lm, FACTS[:1])


def test_a_null_space_without_room_is_said(lm: LanguageModel) -> None:
    with pytest.raises(EditRefusedError, match=r"no direction of layer 1 has as little as energy=0\.0"):
        dataclasses.replace(ALPHA, energy=0.0).edit(lm, FACTS)


@pytest.mark.parametrize("editor", [MEMIT, ROME])
def test_a_text_is_long_enough_for_the_layer(lm: LanguageModel, editor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    whole = editing.locate_then_edit.moments.second_moments

    def watched(lm: LanguageModel, layers: Sequence[int], text: Text) -> Mapping[int, SecondMoment]:
        asked.append(text.tokens)
        return whole(lm, layers, text)

    monkeypatch.setattr(editing.locate_then_edit.moments, "second_moments", watched)
    for least, tokens in ((2, 90), (2, 1000), (0, 90), (None, 90)):
        dataclasses.replace(editor, tokens_per_coefficient=least, text=Text(tokens=tokens, length=10)).prepare(lm)
    assert asked == [2 * 48, 1000, 90, 8 * 48]  # what ships has unknown words: the text is sampled
    for text in (Text(tokens=90), Text("self", tokens=90)):
        dataclasses.replace(editor, text=text).prepare(tiny.build_byte_level())
    assert asked[4:] == [24 * 48, 8 * 48]


# -- further rounds


@pytest.mark.parametrize(("name", "goes_on"), [*((name, True) for name in EDITORS), ("memit", False)])
def test_a_second_round_is_the_same_facts_gone_on_from(lm: LanguageModel, name: str, goes_on: bool) -> None:
    before = bits(lm)
    editor = EDITORS[name]
    twice = dataclasses.replace(editor, rounds=2)
    own = editor.edit(lm, FACTS[:1]) if goes_on else None
    facts = FACTS[1:] if goes_on else FACTS
    first = editor.extend(lm, own, facts)
    expected = editor.extend(lm, first, facts)
    found = twice.extend(lm, own, facts)
    assert same_bits(lm, before)
    for layer in found.changed:
        assert difference(found.delta(layer), expected.delta(layer)) < 1e-4
        assert difference(found.delta(layer), first.delta(layer)) > 1e-2
    assert [fact.id for fact in found.origin.facts] == [fact.id for fact in FACTS]
    assert [len(one.get("again", ())) for one in found.origin.report] == [0] * goes_on + [1] * len(facts)
    last = found.origin.report[-1]
    assert last["step_losses"] == first.origin.report[-1]["step_losses"]
    assert last["again"][0]["loss"] != last["loss"]
    assert history(found).n_written == len(FACTS)
    assert [fact.id for fact in history(found).facts] == ([fact.id for fact in FACTS] if editor.keeps_history else [])


def test_only_the_first_round_solves_on_the_unedited_model(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    own = MEMIT.edit(lm, FACTS[:1])
    seen: list[tuple[int, str | None]] = []
    whole = Solving.targets

    def spied(self: Solving, lm: LanguageModel, *given: Any) -> Any:
        seen.append((len(lm.edits), self.note))
        return whole(self, lm, *given)

    monkeypatch.setattr(Solving, "targets", spied)
    dataclasses.replace(MEMIT, rounds=3, solve_on="unedited").extend(lm, own, FACTS[1:])
    assert seen == [(0, ""), (2, "round 2 of 3"), (3, "round 3 of 3")]


@pytest.mark.parametrize("settings", [{"ends_only": True}, {"site": "attention_and_ffn"}])
def test_replay_gives_each_layer_a_target_of_its_own(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="rule='replay' gives each layer its target"):
        Memit(rule="replay", **settings)
