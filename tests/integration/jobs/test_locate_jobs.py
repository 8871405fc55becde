import json
from pathlib import Path

import program
import pytest
import tiny
import torch
from relation_parts import known
from run_parts import SMALL_EDITOR, SUBJECTS, cut_short, make_home, own_data, record, summary_in

from corrigenda.dictionaries.layouts import read_dictionary
from locate import BackwardLensResult, CausalTraceResult
from locate.circuits.results import Circuit, CircuitChange, CircuitSurvey
from locate.features.facts import FactFeatures
from locate.features.over_facts import FeatureSurvey
from locate.flow.relation_results import LinearRelation, RelationSurvey
from locate.flow.results import AverageKnockout
from locate.neurons.refine import NeuronsResult
from locate.tracing.average import AverageTrace


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, and facts of which it knows all but the second."""
    lm = tiny.build("llama")
    records = []
    for number in range(3):
        prompt = f"the city of {SUBJECTS[number]} is"
        top = lm.tokenizer.decode([int(lm.model(torch.tensor([lm.tokens(prompt)])).logits[0, -1].argmax())])
        known = top if number != 1 else ("Paris" if top != "Paris" else "Rome")
        new = "seven" if known != "seven" else "eight"
        records.append(record(number, target_true=known, target_new=new, generation=[]))
    return make_home(tmp_path_factory.mktemp("locate"), records)


def run(home: Path, *overrides: str) -> str:
    return program.call(home, *own_data(home), *overrides)


def test_trace_job_and_its_resumption(home: Path) -> None:
    small = ["job=trace", "job.facts=null", "job.locator.window=2", "job.locator.noise.samples=2"]
    out = run(home, *small, "hydra.run.dir=traced")
    folder = home / "traced"
    assert "does not know 1 fact, passed over: fact-1" in out
    summary = summary_in(folder)
    assert (summary["n_located"], summary["n_unknown"]) == (2, 1)
    assert set(summary["averages"]) == {"block", "ffn", "attention"}
    assert summary["suggested_layers"][0] in range(tiny.DEPTH)
    for number in (0, 2):
        for site in ("block", "ffn", "attention"):
            stem = f"{number:04d}-fact-{number}-{site}"
            assert CausalTraceResult.load(folder / "results" / stem).site == site
            assert (folder / "pictures" / f"{stem}.png").stat().st_size > 1000
    assert AverageTrace.load(folder / "averages" / "ffn").n_facts == 2
    assert (folder / "average-ffn.png").is_file()
    # Cut short after three results: it goes on there and comes to the same.
    cut_short(folder, 3)
    for stem in ("0002-fact-2-block", "0002-fact-2-ffn", "0002-fact-2-attention"):
        for file in (folder / "results" / stem).iterdir():
            file.unlink()
    run(home, "resume=traced")  # its own configuration says which job it is
    again = summary_in(folder)
    assert again["averages"] == summary["averages"]


def test_neurons_job(home: Path) -> None:
    out = run(home, "job=neurons", "job.locator.steps=4", "data.limit=2", "hydra.run.dir=neurons")
    folder = home / "neurons"
    summary = summary_in(folder)
    assert summary["n_located"] == 2
    assert "knowledge neurons a fact, 2 facts" in out
    found = NeuronsResult.load(folder / "results" / "0000-fact-0")
    assert len(found.results) == 2  # the statement and its paraphrase
    assert (folder / "layers.png").is_file()
    assert "neurons" in run(home, "job=runs", f"store={home}")


def test_the_layer_can_be_located(home: Path) -> None:
    small = [*SMALL_EDITOR, "eval=probabilities"]
    small += [
        "eval.perplexity_windows=3",
        "eval.perplexity_window=16",
        "job.auto_layer.locator.window=2",
        "job.auto_layer.locator.noise.samples=2",
    ]
    out = run(home, *small, "editor.layer=auto", "data.limit=1", "hydra.run.dir=auto")
    chosen = json.loads((home / "auto" / "layer.json").read_text())
    assert f"editor.layer=auto: layer {chosen['layer']}:" in out
    assert chosen["facts"] == ["fact-0"]
    [edit] = (home / "auto" / "edits").glob("*/edit.json")
    assert list(json.loads(edit.read_text())["settings"]["modules"]) == [str(chosen["layer"])]


def test_knockout_and_backward_jobs(home: Path) -> None:
    run(home, "job=knockout", "job.locator.window=2", "hydra.run.dir=knocked")
    summary = summary_in(home / "knocked")
    assert (summary["n_located"], summary["n_unknown"]) == (2, 1)
    mean = AverageKnockout.load(home / "knocked" / "average")
    assert mean.n_facts == 2
    assert summary["average"] == mean.summary()
    assert (home / "knocked" / "average.png").stat().st_size > 1000
    run(home, "job=backward", "job.locator.words=2", "job.facts=1", "hydra.run.dir=backward")
    [place] = (home / "backward" / "results").iterdir()
    assert (
        BackwardLensResult.load(place).target
        == json.loads((home / "facts.jsonl").read_text().splitlines()[0])["target_new"]
    )


def test_relation_job_and_its_resumption(home: Path) -> None:
    lm = tiny.build("llama")
    for name in ("tongue", "speech"):
        facts = known(lm, name=name)
        content = {"name": name, "prompt_templates": [facts[0].prompt]}
        content["samples"] = [{"subject": fact.subject, "object": fact.target_true} for fact in facts]
        (home / "relations").mkdir(exist_ok=True)
        (home / "relations" / f"{name}.json").write_text(json.dumps(content))
    one = {"name": "alone", "prompt_templates": ["{} is"], "samples": [{"subject": "Paris", "object": "red"}]}
    (home / "relations" / "alone.json").write_text(json.dumps(one))
    small = ["job=relation", "job.samples=relations", "job.locator.samples=4", "job.locator.layers=[1,2]"]
    out = run(home, *small, "hydra.run.dir=related")
    folder = home / "related"
    assert "could not be asked about 1 relation, passed over: alone" in out
    summary = summary_in(folder)
    assert (summary["n_located"], summary["together"]["n_relations"]) == (2, 2)
    assert RelationSurvey.load(folder / "together").summary()["means"] == summary["together"]["means"]
    assert (folder / "together.png").stat().st_size > 1000
    assert LinearRelation.load(folder / "results" / "0002-tongue").relation == "tongue"
    cut_short(folder, 2)
    run(home, "resume=related")
    assert summary_in(folder)["together"] == summary["together"]
    misspelt = program.call(home, *own_data(home), *small, "job.relations=[tonge]", succeeds=False)
    assert "there is no relation 'tonge'; did you mean tongue" in misspelt


def test_circuit_job_looks_for_counterfactuals_in_its_data(home: Path) -> None:
    form = "the {} tower is located in the city of"
    facts = [
        {"subject": name, "prompt": form, "target_new": "Rome", "target_true": "Berlin"} for name in ("red", "blue")
    ]
    facts.append({"subject": "Big", "prompt": form, "target_new": "Rome", "target_true": "London"})
    (home / "towers.jsonl").write_text("".join(json.dumps(fact) + "\n" for fact in facts))
    small = ["job=circuit", "job.locator.method=eap", "job.locator.exact=1", "job.answer=Paris"]
    run(home, *small, f"data.path={home / 'towers.jsonl'}", "job.facts=2", "hydra.run.dir=circuits")
    folder = home / "circuits"
    summary = summary_in(folder)
    assert summary["together"]["n_facts"] == 2
    assert CircuitSurvey.load(folder / "together").summary() == summary["together"]
    first, _ = sorted((folder / "results").iterdir())
    assert Circuit.load(first).counterfactual in {form.format(name) for name in ("blue", "Big")}
    assert (folder / "together.png").stat().st_size > 1000
    # Before and after an edit, and the exact score of an edge that is named.
    more = ["job.change=true", "job.locator.edges=[[0.head 1,0.ffn]]", "job.locator.controls=[]", *SMALL_EDITOR]
    run(home, *small, *more, f"data.path={home / 'towers.jsonl'}", "job.facts=1", "hydra.run.dir=changed")
    [place] = (home / "changed" / "results").iterdir()
    change = CircuitChange.load(place)
    assert (change.before.objects[0], change.after.objects[0]) == ("Paris", "Rome")
    assert change.before.edge(int(change.before.exact_edges[-1])) == ("0.head 1", "0.ffn")
    summary = summary_in(home / "changed")
    assert set(summary["together"]["cpr"]) == {"score", "before"}
    assert summary["overlap"]["mean"] == change.overlap


def test_dictionary_and_features_jobs(home: Path) -> None:
    small = ["job=dictionary", "job.layer=1", "job.features=48", "job.k=4", "job.tokens=1000", "job.shipped=640"]
    small += ["job.sampled=0", "job.length=16", "job.held_out=8", "job.batch=64", "job.buffer=256"]
    run(home, *small, "job.control=true", "hydra.run.dir=dictionary")
    folder = home / "dictionary"
    summary = summary_in(folder)
    assert {"model", "random"} <= set(summary)
    assert summary["model"]["n_features"] == 48
    assert summary["model"]["explained"] != summary["random"]["explained"]
    assert (folder / "random.png").stat().st_size > 1000
    one = read_dictionary(folder / "model", layer=1)
    for file in (*(folder / "model").glob("*.*"), folder / "summary.json"):
        if file.is_file():
            file.unlink()
    run(home, "resume=dictionary")
    assert summary_in(folder)["model"] == summary["model"]
    assert read_dictionary(folder / "model", layer=1).fingerprint == one.fingerprint
    read = ["job=dictionary", "job.dictionary=dictionary/model", "job.layer=1", *small[5:9]]
    run(home, *read, "hydra.run.dir=read")
    assert summary_in(home / "read")["model"]["explained"] == pytest.approx(summary["model"]["explained"])
    asked = ["job=features", "job.locator.dictionary=dictionary/model/layers.1.mlp", "job.locator.tokens=640"]
    out = run(home, *asked, "job.change=true", *SMALL_EDITOR, "hydra.run.dir=features")
    assert "does not know 1 fact" in out
    first, _ = sorted((home / "features" / "results").iterdir())
    assert FactFeatures.load(first).after is not None
    together = summary_in(home / "features")["together"]
    assert FeatureSurvey.load(home / "features" / "together").summary() == together
    assert together["end"]["kept"]["n"] == together["n_facts"] == 2
    assert "names no dictionary" in program.call(home, *own_data(home), "job=features", succeeds=False)
