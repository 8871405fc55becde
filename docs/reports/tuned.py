"""docs/tuned.md: whether settings that job=tune finds are as good as those that the project ships, on unseen facts.

    python docs/reports/tuned.py collect [--editor memit] [--minutes 20]
    python docs/reports/tuned.py page

The first step tunes on some facts of CounterFact (runs of run.py, as anyone would start them), and edits other facts
with the settings that were found and with the shipped ones. It can be stopped, and goes on. `pages.py` says more of the
steps.
"""

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pages import ROOT, Collected, Report
from runs import finished, how_made, run
from words import written

from corrigenda.runs.store import Store, StoredRun
from corrigenda.text.names import model_title
from eval import METRICS, Case
from eval.evaluation import Evaluation
from eval.metrics import Metric
from eval.statistics.comparison import compare
from eval.statistics.paired import holm
from jobs.tune.page import draw

NAME = "tuned"
SCRIPT = "tuned.py"
KEYS = (
    "score",
    "preservation",
    "efficacy_success",
    "paraphrase_success",
    "neighbourhood_success",
    "token_accuracy",
    "free_generation_strict",
    "paraphrase_free_generation_strict",
    "perplexity_drift",
)
EVALUATION = ("eval.max_new_tokens=10",)
SHIPPED, TUNED = "as shipped", "tuned"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--editor", default="memit")
    parser.add_argument("--model", default="smollm2-135m", help="its name in conf/model")
    parser.add_argument("--file", type=Path, default=ROOT.parent / "shared" / "data" / "counterfact.json")
    parser.add_argument("--mode", default="batch", choices=("single", "batch"))
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--first", type=int, default=1200, help="facts of the file before those that are tuned on")
    parser.add_argument("--count", type=int, default=20, help="facts that are tuned on")
    parser.add_argument("--unseen", type=int, default=40, help="facts after them, which are scored")
    parser.add_argument("--store", type=Path, default=ROOT / "outputs" / NAME)
    parser.add_argument("--minutes", type=float, default=None, help="stop after so long, to go on another time")
    parser.add_argument("overrides", nargs="*", help="of the configuration, for all runs")


def collect(asked: argparse.Namespace) -> Collected | None:
    deadline = None if asked.minutes is None else time.monotonic() + 60 * asked.minutes
    store = asked.store.resolve()
    common = [f"editor={asked.editor}", f"mode={asked.mode}", "data=counterfact", f"data.path={asked.file.resolve()}"]
    common += ["data.on_error=skip", f"before={store / 'before'}", *EVALUATION, *asked.overrides]
    tuning = [*common, f"data.offset={asked.first}", f"data.limit={asked.count}", f"model={asked.model}"]
    tuning += ["job=tune", f"job.trials={asked.trials}", f"store={store / 'tuning'}"]
    if not run(tuning, Store(store / "tuning"), deadline) or (found := _last(store / "tuning")) is None:
        return None
    unseen = [*common, f"data.offset={asked.first + asked.count}", f"data.limit={asked.unseen}"]
    unseen += [f"data.disjoint_from={found.path}"]
    ways = {
        SHIPPED: [f"model={asked.model}"],
        TUNED: [f"--config-dir={found.path / 'conf'}", f"model={Path(found.summary['model_config']).stem}"],
    }
    scored: dict[str, StoredRun] = {}
    for name, model in ways.items():
        place = store / name.replace(" ", "-")
        if not run([*unseen, *model, f"store={place}"], Store(place), deadline):
            return None
        last = _last(place)
        if last is None:
            return None
        scored[name] = last
    last_tuned, last_scored = asked.first + asked.count, asked.first + asked.count + asked.unseen
    figures = {
        "tuning": {key: value for key, value in found.summary.items() if key not in ("model_config", "later")},
        "facts": {
            "tuned on": f"facts {asked.first + 1:,} to {last_tuned:,} of {asked.file.name}",
            "scored": f"facts {last_tuned + 1:,} to {last_scored:,}",
        },
        "choice": asked.editor,
        **compared({name: Evaluation(tuple(map(Case.from_dict, one.cases()))) for name, one in scored.items()}),
    }
    return Collected(figures, {"tuning": how_made(found)} | {name: how_made(one) for name, one in scored.items()})


def _last(folder: Path) -> StoredRun | None:
    """The newest finished run in a store; None where it failed."""
    return next(iter(finished(Store(folder))), None)


def compared(evaluations: Mapping[str, Evaluation]) -> dict[str, Any]:
    """The figures of both ways, and how they differ on the facts that both have."""
    figures = {name: {k: v for k, v in one.metrics.items() if k in KEYS} for name, one in evaluations.items()}
    subjects = {case.fact.id: case.fact.subject for one in evaluations.values() for case in one.cases}
    tests = {}
    for key in KEYS:
        metric = METRICS.named(key)
        if metric.one_value:
            continue  # of one edited model there is one figure, and none for each fact
        sides = [_values(metric, evaluations[name]) for name in (TUNED, SHIPPED)]
        found = compare(*sides, subjects=subjects, combine=metric.combine)
        if found is not None:
            tests[key] = {name: getattr(found, name) for name in ("n", "difference", "low", "high", "p", "test")}
    return {"metrics": figures, "tests": tests}


def _values(metric: Metric, evaluation: Evaluation) -> dict[Any, tuple[float, ...]]:
    found = {case.fact.id: metric.figures(case.after.values) for case in evaluation.cases}
    return {id_: figures for id_, figures in found.items() if figures is not None}


def digest(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of both ways, and the p-values, corrected for all of them."""
    tests, sides = figures["tests"], figures["metrics"].values()
    return {
        "model": model_title(figures["tuning"]["model"]),
        "keys": [key for key in KEYS if all(key in side for side in sides)],
        "p": dict(zip(tests, holm([test["p"] for test in tests.values()]) if tests else [], strict=True)),
    }


PICTURES = {"tuned.png": lambda data, path: draw(path, data["figures"]["tuning"])}
REPORT = Report(
    NAME,
    SCRIPT,
    "Tuned and shipped settings on unseen facts.",
    options,
    collect,
    written(NAME, SCRIPT),
    digest,
    PICTURES,
)

if __name__ == "__main__":
    REPORT.main()
