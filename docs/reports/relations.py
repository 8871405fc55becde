"""docs/relations.md: in how many relations is the way from subject to object an affine map?

Each relation of the authors' files (Hernandez et al. 2024, "Linearity of Relation Decoding in Transformer Language
Models") by itself: faithfulness and causality with their controls, and whether faithfulness goes with the model's own
accuracy over relations, as they report.

    python docs/reports/relations.py collect [--relations country_language,company_hq] [--minutes 8]
    python docs/reports/relations.py page

Each relation that is done is kept in the work folder, and the first command adds what is done to the data: it can be
stopped after any relation, and goes on. The page says which relations were not run.
"""

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pages import ROOT, Collected, Report, beside, keeping_option, made, making, model_by_model, of_each_model
from words import written

from corrigenda import load
from corrigenda.data.relation_facts import group_by_relation, read_relations
from corrigenda.system.files import write_json
from corrigenda.system.plain_data import read_json
from locate.flow.relation import RelationDecoding
from locate.flow.relation_results import CONTROLS, RelationSurvey
from locate.question import UnknownFactError

NAME = "relations"
SCRIPT = "relations.py"
USES = ("locate.flow.relation", "corrigenda.linear_relations", "corrigenda.forward.jacobians")
"""What the figures are made with: the code version of all of them is of the files of these."""
LEAST = 5
"""A relation of which the model knows fewer test samples is listed, and counts in no mean."""
FIGURE = "summary.json"


def options(parser: argparse.ArgumentParser) -> None:
    """The first step's options."""
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "relations")
    parser.add_argument("--relations", default="", help="comma-separated names of files; by default all")
    parser.add_argument("--samples", type=int, default=RelationDecoding.samples, help="whose Jacobians make a map")
    parser.add_argument("--tests", type=int, default=RelationDecoding.tests, help="other samples of each, at most")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no relation after so long")
    parser.add_argument("--work", type=Path, default=ROOT / "outputs" / "relations")
    keeping_option(parser)


def collect(arguments: argparse.Namespace) -> Collected | None:
    """The figures of each relation that is done; None where none is."""
    deadline = time.monotonic() + 60 * arguments.minutes
    decoding = RelationDecoding(samples=arguments.samples, tests=arguments.tests)
    files = sorted(arguments.data.glob("*.json"))
    names = arguments.relations.split(",") if arguments.relations else [file.stem for file in files]
    if unknown := set(names) - {file.stem for file in files}:
        raise SystemExit(f"--relations: {arguments.data} has no file of {', '.join(sorted(unknown))}")
    lm = load(arguments.model)
    work = arguments.work / lm.fingerprint[:8] / f"{arguments.samples}-{arguments.tests}"
    for name in names:
        if not (work / name / FIGURE).is_file() and time.monotonic() < deadline:
            with making(work / name, USES):
                write_json(work / name / FIGURE, figures_of(lm, arguments.data / f"{name}.json", decoding))
    done = [file.stem for file in files if (work / file.stem / FIGURE).is_file()]
    if not done:
        return None
    figures = {
        "samples": arguments.samples,
        "tests": arguments.tests,
        "files": {file.stem: len(read_relations(file)) for file in files},
        "relations": {name: read_json(work / name / FIGURE) for name in done},
    }
    return beside(NAME, lm.name, figures, {name: made(work / name) for name in done}, arguments)


def figures_of(lm: Any, file: Path, decoding: RelationDecoding) -> dict[str, Any]:
    """What `LinearRelation.summary` says of a file's relation; of one that the model knows nothing of, just that."""
    [relation] = group_by_relation(read_relations(file))
    try:
        return decoding.find(lm, relation).summary()
    except UnknownFactError:
        return {"relation": relation.name, "n_known": 0}


def counted(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The relations that count in means, by the names of their files."""
    return {name: one for name, one in figures["relations"].items() if one["n_known"] >= LEAST}


def digest(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The means over relations with their intervals, and Spearman's rho of faithfulness and accuracy."""
    found = counted(figures)
    return RelationSurvey.of_figures(found).summary() if found else {"n_relations": 0, "means": {}}


def shown(data: Mapping[str, Any]) -> dict[str, Any]:
    """What the template shows."""
    models = model_by_model(data)["models"]
    for one in models.values():
        one["counted"] = counted(one)
        one["few"] = {name: each for name, each in one["relations"].items() if name not in one["counted"]}
        one["not_run"] = [name for name in one["files"] if name not in one["relations"]]
    return {"models": models, "controls": CONTROLS, "least": LEAST}


def draw(data: Mapping[str, Any], path: Path) -> None:
    """The relations that count of the first model, side by side."""
    RelationSurvey.of_figures(counted(next(iter(data["figures"]["models"].values())))).plot(path)


PAGE = written(NAME, SCRIPT, shown)
PICTURES = {"relations.png": draw}
TITLE = (__doc__ or "").splitlines()[0]
REPORT = Report(NAME, SCRIPT, TITLE, options, collect, PAGE, of_each_model(digest), PICTURES)

if __name__ == "__main__":
    REPORT.main()
