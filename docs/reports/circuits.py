"""docs/circuits.md: how faithful circuits of known facts are, by the way in which their edges are scored."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from options import FILES, OUTPUTS, Data, Options, asking, deadline_of
from pages import Collected, beside, made
from report import Report, model_by_model
from rows import against
from work import first_records

from corrigenda import Fact, LanguageModel, load, read_facts
from locate import Circuits, UnknownFactError
from locate.circuits.faithfulness import SHARES, areas
from locate.circuits.pictures import faithfulness_picture
from locate.circuits.results import SHOWN, CircuitSurvey

NAME, SCRIPT = "circuits", "circuits.py"
USES = ("locate.circuits.circuit",)
FIRST = "eap_ig"
METHODS = {FIRST: Circuits(exact=0), "eap": Circuits(method="eap", exact=0, controls=())}
"""By name the locator; the first has the controls, too."""
AT = SHARES.index(SHOWN)
options = asking(
    *("--model", "--minutes", "--anew"),
    data=(FILES / "known_facts.json", "facts, in the order in which they are asked about"),
    facts=(60, "so many that the model knows, with a counterfactual"),
    work=OUTPUTS / NAME,
)


def collect(arguments: Options) -> Collected:
    lm, deadline = load(arguments.model), deadline_of(arguments)
    facts, work = read_facts(arguments.data), arguments.work / lm.fingerprint[:8]
    by_id = {fact.id: fact for fact in facts}
    asked, found = [*by_id.values()], {}
    for name, locator in METHODS.items():
        of_fact = partial(circuit_of, lm, locator, asked)
        found[name] = first_records(work / name, by_id.values(), of_fact, arguments.facts, "values", USES, deadline)
        by_id = {one["id"]: by_id[one["id"]] for one in found[name]}
    values = {name: [one["values"]["score"] for one in of] for name, of in found.items()}
    values |= {name: [one["values"][name] for one in found[FIRST]] for name in METHODS[FIRST].controls}
    figures = {
        **{"of": arguments.data.stem, "subjects": [by_id[one["id"]].subject for one in found[FIRST]], "shares": SHARES},
        **{"ends": [one["ends"] for one in found[FIRST]], "values": values},
    }
    return beside(NAME, lm.name, figures, {name: made(work / name) for name in METHODS}, arguments)


def circuit_of(lm: LanguageModel, locator: Circuits, others: Sequence[Fact], fact: Fact) -> dict[str, Any]:
    """M of a fact's circuits, by what ranked their edges; or why there are none."""
    try:
        found = locator.find(lm, fact, others=others)
    except (UnknownFactError, ValueError) as why:
        return {"id": fact.id, "why": type(why).__name__}
    values = dict(zip(found.by, found.values.tolist(), strict=True))
    return {"id": fact.id, "values": values, "ends": found.ends.tolist()}


def digest(figures: Data) -> dict[str, Any]:
    """Means with intervals, and the paired tests of the first method against the second, fact by fact."""
    survey = CircuitSurvey.of_values(*(figures[key] for key in ("subjects", "shares", "values", "ends")))
    first, second = (by_fact(figures, name) for name in METHODS)
    nearer = [one < two for one, two in zip(first["after"]["off"], second["after"]["off"], strict=True)]
    return {**survey.summary(), "apart": against(second, first, ("cmd", "off")), "nearer": sum(nearer)}


def by_fact(figures: Data, name: str) -> dict[str, Any]:
    """Each fact's CMD, and how far f at `SHOWN` of the edges is from 1."""
    after: dict[str, list[float]] = {"cmd": [], "off": []}
    for values, (none, everything) in zip(figures["values"][name], figures["ends"], strict=True):
        curve = [(value - none) / (everything - none) for value in values]
        after["cmd"].append(areas(figures["shares"], curve)[1])
        after["off"].append(abs(1 - curve[AT]))
    return {"subjects": figures["subjects"], "after": after}


def draw(data: Data, path: Path) -> None:
    """Faithfulness by the share of edges, of the first model."""
    [(model, one), *_] = model_by_model(data)["models"].items()
    curves = {
        name: [(of["mean"], of["low"], of["high"]) for of in curve.values()]
        for name, curve in one["faithfulness"].items()
    }
    faithfulness_picture(path, f"circuits of {one['n_facts']} facts in {model}", one["shares"], curves)


REPORT = Report(NAME, SCRIPT, __doc__, options, collect, digest, pictures={"circuits.png": draw}, of_models=True)
if __name__ == "__main__":
    REPORT.main()
