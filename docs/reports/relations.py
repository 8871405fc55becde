"""docs/relations.md: in how many relations is the way from subject to object an affine map?

Of each of the authors' files (Hernandez et al. 2024) faithfulness and causality with their controls. What is done when
the time is up is in the data.
"""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from options import FILES, OUTPUTS, Data, NotFinishedError, Options, asking, deadline_of
from pages import Collected, beside, made
from report import Report, model_by_model
from runs import chosen
from work import once

from corrigenda import load
from corrigenda.data.relation_facts import group_by_relation, read_relations
from corrigenda.system.plain_data import read_json
from locate.flow.relation import RelationDecoding
from locate.flow.relation_results import CONTROLS, RelationSurvey
from locate.question import UnknownFactError

NAME, SCRIPT = "relations", "relations.py"
USES = ("locate.flow.relation", "corrigenda.linear_relations", "corrigenda.forward.jacobians")
LEAST = 5  # a relation of which the model knows fewer test samples is listed, and counts in no mean
options = asking(
    *("--model", "--minutes", "--anew"),
    data=FILES / NAME,
    relations=("", "comma-separated names of files; by default all"),
    samples=(RelationDecoding.samples, "whose Jacobians make a map"),
    tests=(RelationDecoding.tests, "other samples of each, at most"),
    work=OUTPUTS / NAME,
)


def collect(arguments: Options) -> Collected | None:
    """The figures of each relation that is done; None where none is."""
    deadline = deadline_of(arguments)
    decoding = RelationDecoding(samples=arguments.samples, tests=arguments.tests)
    files = {file.stem: file for file in sorted(arguments.data.glob("*.json"))}
    names = chosen(arguments.relations, files, "relation")
    lm = load(arguments.model)
    work = arguments.work / lm.fingerprint[:8] / f"{arguments.samples}-{arguments.tests}"
    paths = {name: work / name / "summary.json" for name in files}
    with suppress(NotFinishedError):
        for name in names:
            once(paths[name], partial(figures_of, lm, files[name], decoding), USES, deadline)
    done = {name: read_json(path) for name, path in paths.items() if path.is_file()}
    figures = {
        "samples": arguments.samples,
        "tests": arguments.tests,
        "files": {name: len(read_relations(file)) for name, file in files.items()},
        "relations": done,
    }
    runs = {name: made(work / name) for name in done}
    return beside(NAME, lm.name, figures, runs, arguments) if done else None


def figures_of(lm: Any, file: Path, decoding: RelationDecoding) -> dict[str, Any]:
    """What `LinearRelation.summary` says of a file's relation; of one that the model knows nothing of, just that."""
    [relation] = group_by_relation(read_relations(file))
    try:
        return decoding.find(lm, relation).summary()
    except UnknownFactError:
        return {"relation": relation.name, "n_known": 0}


def counted(figures: Data) -> dict[str, Any]:
    """The relations that count in means, by the names of their files."""
    return {name: one for name, one in figures["relations"].items() if one["n_known"] >= LEAST}


def digest(figures: Data) -> dict[str, Any]:
    """The means over relations with their intervals, and Spearman's rho of faithfulness and accuracy."""
    found = counted(figures)
    return RelationSurvey.of_figures(found).summary() if found else {"n_relations": 0, "means": {}}


def shown(data: Data) -> dict[str, Any]:
    models = model_by_model(data)["models"]
    for one in models.values():
        one["counted"] = counted(one)
        apart = [
            each["faithfulness"]["share"] - max(each[control]["share"] for control in CONTROLS)
            for each in one["counted"].values()
        ]
        one["better"], one["worse"] = sum(by > 0 for by in apart), sum(by < 0 for by in apart)
        one["few"] = {name: each for name, each in one["relations"].items() if name not in one["counted"]}
        one["not_run"] = [name for name in one["files"] if name not in one["relations"]]
    return {"models": models, "controls": CONTROLS, "least": LEAST}


def draw(data: Data, path: Path) -> None:
    """The relations that count of the first model, side by side."""
    RelationSurvey.of_figures(counted(next(iter(data["figures"]["models"].values())))).plot(path)


PICTURES = {"relations.png": draw}
REPORT = Report(NAME, SCRIPT, __doc__, options, collect, digest, shown, PICTURES, of_models=True)
if __name__ == "__main__":
    REPORT.main()
