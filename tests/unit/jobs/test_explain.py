import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from corrigenda import ContextEdit, Edit, EditRefusedError, Fact, LanguageModel, LowRankEdit, Origin
from corrigenda.text.display import printable
from eval import EvalSettings, evaluate
from jobs import ExplainSettings, Explanation, explain
from jobs.explain.grids import Field, Grid
from jobs.explain.parts import too_few_steps
from locate import (
    Circuits,
    Noise,
    causal_trace,
    edit_lens,
    knowledge_circuit,
    knowledge_neurons,
    logit_attribution,
    logit_lens,
    sub_updates,
)

FACT = Fact(
    "Eiffel tower",
    "the {} is in",
    "Rome",
    "Paris",
    paraphrases=("the {} stands in",),
    neighbourhood=("Big Ben is in",),
    locality=({"prompt": "the mother tongue of Danielle Darrieux is", "answer": "French"},),  # type: ignore[arg-type]
    portability=({"prompt": "the Eiffel tower is in the country of", "answer": "Italy"},),  # type: ignore[arg-type]
    generation=("the Eiffel tower is",),
)
SETTINGS = ExplainSettings(
    trace_window=2,
    steps=2,
    neurons=3,
    sub_updates=3,
    words=4,
    answer_tokens=4,
    trace_sites=("block", "ffn", "attention"),
)


@dataclass(frozen=True)
class Toy:
    """An editor that writes a random update of rank two, or refuses."""

    name: str = "toy"
    size: float = 1.0
    refuses: bool = False

    def edit(self, lm: LanguageModel, facts: Any) -> Edit:
        if self.refuses:
            raise EditRefusedError("toy: not today")
        draw = torch.Generator().manual_seed(0)
        d_ffn, d_model = lm.memory(1).values.shape
        factors = torch.randn(d_ffn, 2, generator=draw), self.size * torch.randn(2, d_model, generator=draw)
        return LowRankEdit.of(lm, Origin(lm.name, lm.fingerprint, "toy", facts=tuple(facts)), {1: factors})


lm = pytest.fixture(tiny.llama, scope="module")


@pytest.fixture(scope="module")
def found(lm: LanguageModel) -> Explanation:
    return explain(lm, FACT, Toy(), SETTINGS)


def data_of(html: str) -> Any:
    """The block of JSON in a page."""
    [block] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    return json.loads(block)


def field(grid: dict[str, Any], name: str) -> torch.Tensor:
    [values] = [one["values"] for one in grid["fields"] if one["name"] == name]
    return torch.tensor([[float("nan") if cell is None else cell for cell in row] for row in values])


def near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """The page's figures have seven digits."""
    return torch.allclose(found.float(), expected.float(), rtol=1e-5, atol=1e-7, equal_nan=True)


def test_each_figure_is_what_its_function_gives(lm: LanguageModel, found: Explanation) -> None:
    parts, edit = data_of(found.html())["parts"], Toy().edit(lm, [FACT])
    rome, paris = 4 + tiny.WORDS.index("Rome"), 4 + tiny.WORDS.index("Paris")

    def compare(side: str, answer: str) -> None:
        def grids(name: str) -> list[dict[str, Any]]:
            assert parts[name][side]["absent"] == ""
            return list(parts[name][side]["grids"])

        [lens] = grids("lens")
        for token, name in ((rome, "Rome"), (paris, "Paris")):
            expected = logit_lens(lm, FACT.statement, token)
            assert near(field(lens, f"P({name!r})"), expected.probabilities.flip(0))
            assert near(field(lens, f"rank of {name!r}"), expected.ranks.flip(0))
        assert near(field(lens, "P(top token)"), expected.top_probabilities.flip(0))
        [words] = [one["values"] for one in lens["fields"] if one["name"] == lens["shown"]]
        assert words == [list(row) for row in reversed(expected.words)]
        assert lens["rows"] == ["3", "2", "1", "0"]
        assert lens["columns"] == ["the", "Eiffel", "tower", "is", "in"]

        assert len(grids("trace")) == 3
        for site, grid in zip(("block", "ffn", "attention"), grids("trace"), strict=True):
            trace = causal_trace(lm, FACT, answer, site=site, window=2, noise=Noise(samples=2))
            assert near(field(grid, "indirect effect"), trace.indirect_effects.T)
            assert near(field(grid, f"P({answer!r}) restored"), trace.scores.T)
            assert [grid["rows"][place] for place in grid["marked"]] == ["Eiffel", "tower"]

        [neurons] = grids("neurons")
        attributed = knowledge_neurons(lm, FACT, answer, steps=2)
        shown = field(neurons, "attribution").flip(0)
        assert near(shown[:, 0], attributed.by_layer())
        assert near(shown[:, 1:], attributed.attributions.topk(3).values)
        [names] = [one["values"] for one in neurons["fields"] if one["name"] == "neuron"]
        assert [row[1:] for row in names[::-1]] == [
            [str(neuron) for neuron in row] for row in attributed.attributions.topk(3).indices.tolist()
        ]

        [updates] = grids("sub_updates")
        apart = sub_updates(lm, FACT.statement, token=rome, k=3, words=4)
        gives = field(updates, "gives to 'Rome'").flip(0)
        assert near(gives[:, 1:], apart.scores)
        assert near(gives[:, 0], apart.net)
        assert near(field(updates, "size").flip(0)[:, 1:], apart.sizes)
        assert near(field(updates, "promotion by all sub-updates").flip(0)[:, 0], apart.promotion)
        [promoted] = [one["values"] for one in updates["fields"] if one["name"] == "promotes"]
        assert [text for text, _ in promoted[-1][1]] == list(apart.promoted[0][0].texts)

        [logit] = grids("attribution")
        direct = logit_attribution(lm, FACT.statement, rome, paris)
        gives = field(logit, "gives").flip(0)
        assert near(gives[:, 0], direct.attention)
        assert near(gives[:, 1:-1], direct.heads)
        assert near(gives[:, -1], direct.ffn)

    compare("before", "Paris")
    with edit.applied(lm):
        compare("after", "Rome")
    assert not lm.edits


def test_sums_that_cannot_be_right_are_said_to_be_wrong(lm: LanguageModel) -> None:
    found = knowledge_neurons(lm, FACT, "old", steps=2)
    sums = torch.zeros_like(found.attributions)
    assert too_few_steps(replace(found, attributions=sums, probability=0.7)) == ""
    sums[1, 4], sums[2, 0] = 0.72, -0.32
    text = too_few_steps(replace(found, attributions=sums, probability=0.7))
    assert "Too few steps for layer 1, 2:" in text
    sums[1, 4], sums[2, 0] = 0.7, -0.3
    assert too_few_steps(replace(found, attributions=sums, probability=0.7)) == ""


def test_the_circuit_and_what_the_edit_took_over(lm: LanguageModel) -> None:
    """Of a fact whose relation ships; another one has no counterfactual, and its page says so."""
    fact, edit = replace(FACT, relation="landmark_city"), Toy().edit(lm, [FACT])
    parts = explain(lm, fact, edit, replace(SETTINGS, trace_sites=("block",))).to_dict()["parts"]["circuit"]
    before = knowledge_circuit(lm, fact, "Paris", exact=0, controls=())
    with edit.applied(lm):
        change = Circuits(exact=0, controls=()).after(lm, before, "Rome")
    [first], [second, taken] = (parts[side]["grids"] for side in ("before", "after"))
    for grid, circuit in ((first, before), (second, change.after)):
        assert near(field(grid, "its edges give").flip(0).flatten(), circuit.written_by()[1:])
        assert repr(circuit.counterfactual) in grid["note"]
    source, reader = before.edge(int(before.scores.abs().argmax()))
    [largest] = [one["values"] for one in first["fields"] if one["name"] == "the largest"]
    layer, part = source.split(".")
    told = largest[3 - int(layer)][first["columns"].index(part.replace("ffn", "FFN"))]
    assert told[0].startswith(f"to {reader}: ")
    assert list(taken["rows"]) == [" to ".join(change.after.edge(edge)) for edge in change.taken_over()]
    scores = torch.stack([before.scores, change.after.scores])[:, change.taken_over()]
    assert near(field(taken, "score"), scores.T)


def test_what_the_edit_wrote(lm: LanguageModel, found: Explanation) -> None:
    [grid] = data_of(found.html())["written"]["grids"]
    reading = edit_lens(lm, Toy().edit(lm, [FACT]), words=4)
    [layer] = reading.layers
    assert grid["rows"] == ["layer 1"]
    assert near(field(grid, "share of the update")[0, :2], torch.tensor([one.share for one in layer.components]))
    assert field(grid, "rank of 'Rome' there")[0, 2] == reading.facts[0].written_ranks[0]
    [says] = [one["values"] for one in grid["fields"] if one["name"] == "says"]
    assert [text for text, _ in says[0][0]] == list(layer.components[0].promoted.texts)


def test_of_an_edit_of_many_facts_its_own_is_read(lm: LanguageModel) -> None:
    others = [Fact("Big Ben", "{} is in", "Paris", id=f"other-{number}") for number in range(33)]
    few = replace(SETTINGS, trace_sites=("block",))
    for facts, ranks in (([*others, FACT], ["'Rome'"]), (others, [])):
        [grid] = explain(lm, FACT, Toy().edit(lm, facts), few).to_dict()["written"]["grids"]
        names = [one["name"] for one in grid["fields"]]
        assert re.findall(r"^rank of (.*) there$", "\n".join(names), re.M) == ranks
        assert ("at the prompt" in grid["columns"]) == bool(ranks)


def test_every_answer_before_and_after(lm: LanguageModel, found: Explanation) -> None:
    answers = data_of(found.html())["answers"]
    wanted = {"prompt": "Rome", "paraphrases": "Rome", "portability": "Italy", "neighbourhood": None, "locality": None}
    assert {kind: rows[0]["wanted"] for kind, rows in answers.items()} == wanted
    asked = replace(FACT, generation=())
    with Toy().edit(lm, [FACT]).applied(lm):
        [case] = evaluate(lm, [asked], EvalSettings(max_new_tokens=4, perplexity_windows=0)).cases
        goes_on = lm.generate("the Eiffel tower is in", 4, stop_at_newline=True)
    assert case.before is not None
    for side, measured in (("before", case.before), ("after", case.after)):
        [prompt] = measured.scored("prompt")
        row = answers["prompt"][0][side]
        assert (row["answer"], row["right"]) == (prompt.answer, prompt.strict)
        assert row["figures"]["P(new)"] == pytest.approx(prompt.p_new, rel=1e-5)
        assert row["figures"]["P(old)"] == pytest.approx(prompt.p_true, rel=1e-5)
        assert row["figures"]["token accuracy"] == prompt.token_accuracy
        assert answers["locality"][0][side]["answer"] is not None
    assert answers["prompt"][0]["after"]["answer"] == goes_on
    page = found.html()
    assert "at most 4 tokens" in page
    assert "(where it should go on as before: the next 10 tokens" in page
    assert "should begin with the new object" in page
    with Toy().edit(lm, [FACT]).applied(lm):
        goes_on = lm.generate("Big Ben is in", EvalSettings().preservation_tokens, stop_at_newline=False)
    assert answers["neighbourhood"][0]["after"]["answer"].split() == goes_on.split()
    [near_it] = case.after.scored("neighbourhood")
    row = answers["neighbourhood"][0]
    assert row["before"]["right"] is None
    assert row["after"]["right"] is near_it.preserved is (row["after"]["answer"] == row["before"]["answer"])
    assert row["after"]["figures"]["KL from before"] == pytest.approx(near_it.kl, rel=1e-5)


def test_a_page_loads_nothing_and_takes_texts_for_texts(lm: LanguageModel, tmp_path: Path) -> None:
    bad = "</script>\u2028<img src=x onerror=alert(1)><b>&"
    fact = replace(FACT, subject=bad, id="bad", target_new=f"Rome {bad}", paraphrases=(f"{bad} in",), locality=())
    made = explain(lm, fact, Toy(), replace(SETTINGS, trace_sites=("block",)))
    made.write(tmp_path / "fact.html")
    html = (tmp_path / "fact.html").read_text(encoding="utf-8")
    assert "<img" not in html
    assert html.count("<script") == html.count("</script>") == 2
    assert data_of(html)["fact"]["subject"] == printable(bad)
    assert "&lt;img src=x onerror=alert(1)&gt;" in html
    own = html.replace(bad, "")
    assert not re.search(r"https?://|url\(|@import|<link|<iframe|\bsrc=(?!x)|\bfetch\(|XMLHttp", own)
    assert "default-src 'none'" in html
    made.save(tmp_path / "fact.json")
    assert json.loads((tmp_path / "fact.json").read_text())["statement"] == fact.statement
    # Light, dark by the system, and dark by the switch.
    assert "@media (prefers-color-scheme: dark)" in html
    assert ':root[data-theme="dark"]' in html
    assert 'id="theme"' in html


def test_what_cannot_be_computed_says_why(lm: LanguageModel) -> None:
    few = replace(SETTINGS, trace_sites=("block",))
    beside = explain(
        lm, FACT, ContextEdit(Origin(lm.name, lm.fingerprint, "in_context"), "the tower is in Rome . "), few
    )
    assert "changes neither values nor coefficients" in beside.written.absent
    assert beside.after["lens"].grids[0].columns[:5] == ("the", "tower", "is", "in", "Rome")
    assert "Not here: a context edit changes neither values" in beside.html()
    assert "there is no counterfactual of 'the Eiffel tower is in'" in beside.before["circuit"].absent

    experts = tiny.build("mixtral")
    context = ContextEdit(Origin(experts.name, experts.fingerprint, "in_context"), "in Rome . ")
    mixture = explain(experts, FACT, context, few)
    for name in ("neurons", "sub_updates", "attribution"):
        assert mixture.before[name].absent.count("\n") == 0 < len(mixture.before[name].absent)
        assert not mixture.before[name].grids
    assert mixture.before["lens"].grids
    assert mixture.after["trace"].grids


def test_a_refused_edit_and_erasures_and_insertions(lm: LanguageModel) -> None:
    few = replace(SETTINGS, trace_sites=("block",))
    refused = explain(lm, FACT, Toy(refuses=True), few)
    assert refused.error == "refused: toy: not today"
    assert refused.before["lens"].grids
    assert all("refused" in one.absent for one in refused.after.values())
    assert refused.to_dict()["answers"]["prompt"][0]["after"] is None
    assert "The edit failed: refused: toy: not today" in refused.html()

    erased = explain(lm, replace(FACT, target_new=None, aliases=(), portability=()), Toy(), few)
    assert "(erased)" in erased.html()
    assert "should begin with the new object" not in erased.html()
    assert "The old object should be less probable than before" in erased.html()
    inserted = explain(lm, replace(FACT, target_true=None, neighbourhood=()), Toy(), few)
    assert "<s>" not in inserted.html()
    assert "P(new)" in inserted.to_dict()["answers"]["prompt"][0]["after"]["figures"]


def test_wrong_arguments(lm: LanguageModel, found: Explanation, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="must be an editor with its settings"):
        explain(lm, FACT, "rome")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be an editor with its settings"):
        explain(lm, FACT, Toy)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a Fact"):
        explain(lm, "Paris", Toy())  # type: ignore[arg-type]
    edit = Toy().edit(lm, [FACT])
    with edit.applied(lm), pytest.raises(ValueError, match="is applied to tiny-llama now"):
        explain(lm, FACT, edit)
    with pytest.raises(ValueError, match=r"fact\.pdf: a fact's page is written as HTML"):
        found.write(tmp_path / "fact.pdf")
    with pytest.raises(ValueError, match=r"trace_sites=\[\] must name at least one"):
        ExplainSettings(trace_sites=())
    with pytest.raises(ValueError, match=r"the field 'x' of 'y' has 1 rows of \[2\] cells, not 1 of 1"):
        Grid("y", "", "layer", "token", ("0",), ("a",), (Field("x", "number", [[1, 2]]),))
