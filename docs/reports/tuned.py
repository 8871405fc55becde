"""docs/tuned.md: whether settings that job=tune finds are as good as those that the project ships, on unseen facts.

The first step tunes on some facts of CounterFact (runs of run.py, as anyone would start them), and edits other facts
with the settings that were found and with the shipped ones.
"""

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from options import FILES, OUTPUTS, Data, Options, asking, deadline_of
from pages import Collected
from report import Report
from runs import finished, how_made, run

from corrigenda.runs.store import Store, StoredRun
from corrigenda.text.names import model_title
from eval import METRICS, Case, Evaluation
from eval.metrics import Metric
from eval.statistics.comparison import compare
from eval.statistics.paired import holm
from jobs.tune.page import draw

NAME, SCRIPT = "tuned", "tuned.py"
KEYS = (
    *("score", "preservation", "efficacy_success", "paraphrase_success", "neighbourhood_success", "token_accuracy"),
    *("free_generation_strict", "paraphrase_free_generation_strict", "perplexity_drift"),
)
EVALUATION = ("eval.max_new_tokens=10",)
SHIPPED, TUNED = "as shipped", "tuned"
options = asking(
    *("--model", "--minutes", "overrides"),
    editor="memit",
    file=FILES / "counterfact.json",
    mode=("batch", "single or batch"),
    trials=8,
    first=(1200, "facts of the file before those that are tuned on"),
    count=(20, "facts that are tuned on"),
    unseen=(40, "facts after them, which are scored"),
    store=OUTPUTS / NAME,
)


def collect(asked: Options) -> Collected | None:
    deadline = deadline_of(asked)
    store = asked.store.resolve()
    common = [f"editor={asked.editor}", f"mode={asked.mode}", "data=counterfact", f"data.path={asked.file.resolve()}"]
    common += ["data.on_error=skip", f"before={store / 'before'}", *EVALUATION, *asked.overrides]
    tuning = [*common, f"data.offset={asked.first}", f"data.limit={asked.count}", f"model={asked.model}"]
    tuning += ["job=tune", f"job.trials={asked.trials}", f"store={store / 'tuning'}"]
    if (found := newest(tuning, store / "tuning", deadline)) is None:
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
        if (last := newest([*unseen, *model, f"store={place}"], place, deadline)) is None:
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


def newest(overrides: list[str], folder: Path, deadline: float | None) -> StoredRun | None:
    """The newest finished run of a store, after this one; None where it failed or was stopped."""
    store = Store(folder)
    return next(iter(finished(store)), None) if run(overrides, store, deadline) else None


def compared(evaluations: Mapping[str, Evaluation]) -> dict[str, Any]:
    """The figures of both ways, and how they differ on the facts that both have."""
    figures = {name: {k: v for k, v in one.metrics.items() if k in KEYS} for name, one in evaluations.items()}
    subjects: dict[Hashable, Hashable] = {
        case.fact.id: case.fact.subject for one in evaluations.values() for case in one.cases
    }

    def by_fact(metric: Metric, evaluation: Evaluation) -> dict[Any, tuple[float, ...]]:
        found = {case.fact.id: metric.figures(case.after.values) for case in evaluation.cases}
        return {id_: figures for id_, figures in found.items() if figures is not None}

    tests = {}
    for key in KEYS:
        metric = METRICS.named(key)
        # Of one edited model there is one figure of some, and none for each fact.
        tuned, shipped = (by_fact(metric, evaluations[name]) for name in (TUNED, SHIPPED))
        if not metric.one_value and (found := compare(tuned, shipped, subjects, metric.combine)):
            tests[key] = {name: getattr(found, name) for name in ("n", "difference", "low", "high", "p", "test")}
    return {"metrics": figures, "tests": tests}


def digest(figures: Data) -> dict[str, Any]:
    """The metrics of both ways, and the p-values, corrected for all of them."""
    tests, sides = figures["tests"], figures["metrics"].values()
    return {
        "model": model_title(figures["tuning"]["model"]),
        "keys": [key for key in KEYS if all(key in side for side in sides)],
        "p": dict(zip(tests, holm([test["p"] for test in tests.values()]), strict=True)),
    }


PICTURES = {"tuned.png": lambda data, path: draw(path, data["figures"]["tuning"])}
REPORT = Report(NAME, SCRIPT, __doc__, options, collect, digest, pictures=PICTURES)
if __name__ == "__main__":
    REPORT.main()
