"""docs/tuned.md: whether settings that job=tune finds are as good as those that the project ships, on unseen facts.

    python docs/reports/tuned.py collect [--editor memit] [--minutes 20]
    python docs/reports/tuned.py page

The first step tunes on some facts of CounterFact (runs of run.py, as anyone would start them), and edits other facts
with the settings that were found and with the shipped ones. It can be stopped, and goes on. `pages.py` says more of the
two steps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pages import ROOT, Collected, Report, provenance
from runs import finished, how_made, run
from words import ALPHA, chance

from corrigenda.runs.store import Store, StoredRun
from corrigenda.system.files import write_text
from corrigenda.text.names import model_title
from eval import METRICS, Case
from eval.evaluation import Evaluation
from eval.metrics import Metric
from eval.statistics.comparison import compare
from eval.statistics.paired import holm
from jobs.tune.page import draw, in_words

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
MARGIN = 0.05
"""A loss of so much would matter, so that it is said where it is not excluded."""


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


def page(data: Mapping[str, Any], docs: Path) -> list[Path]:
    figures = data["figures"]
    picture = docs / "figures" / f"{NAME}.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    draw(picture, figures["tuning"])
    path = docs / f"{NAME}.md"
    write_text(path, "\n".join(lines(data, figures)) + "\n")
    return [path, picture]


def lines(data: Mapping[str, Any], figures: Mapping[str, Any]) -> Iterator[str]:
    tuning, tests = figures["tuning"], figures["tests"]
    first, best = tuning["trials"][0], tuning["trials"][tuning["best"]]
    yield f"# Tuned and shipped settings: {tuning['editor']} on {model_title(tuning['model'])}"
    yield ""
    yield verdict(tests)
    yield ""
    yield (
        "Tune on facts of your own ([tuning.md](tuning.md)), and look at what is said as well as at what stays: a "
        "weaker edit leaves more. *As shipped* is what shipped when this was run ("
        f"{', '.join(f'{name} {value:g}' for name, value in first['params'].items())}); that has changed since."
    )
    yield ""
    yield (
        f"`job=tune` tried {len(tuning['trials'])} settings of `editor={figures['choice']}` on {len(tuning['facts'])} "
        f"facts ({figures['facts']['tuned on']}, mode={tuning['mode']}), for: {tuning['objective']}. "
        f"Chosen: trial {best['number']}, {in_words(best['settings'])} ({best['value']:.3f})."
    )
    if best["number"] == 0:
        yield "**These are the shipped settings: no other did better, and there is nothing to compare.**"
    yield ""
    yield f"![the trials](figures/{NAME}.png)"
    yield ""
    yield f"## On facts that no trial saw ({figures['facts']['scored']})"
    yield ""
    yield "The difference is tuned less shipped, on the same facts, with 95 % intervals; p is corrected by Holm."
    yield ""
    yield "| metric | unedited | as shipped | tuned | difference | p |"
    yield "|---|---|---|---|---|---|"
    corrected = by_holm(tests)
    for key in KEYS:
        sides = [figures["metrics"][name].get(key) for name in (SHIPPED, TUNED)]
        if None in sides:
            continue
        unit, test = METRICS.named(key).written, tests.get(key)
        before = sides[0]["before"]
        cells = [METRICS.named(key).title + f" ({unit.symbol})", "" if before is None else unit.text(before)]
        cells += [_with_interval(side, "after", unit) for side in sides]
        cells += ["", ""] if test is None else [_with_interval(test, "difference", unit), chance(corrected[key])]
        yield f"| {' | '.join(cells)} |"
    yield from provenance(NAME, data, SCRIPT)


def by_holm(tests: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The p-values, corrected for all of them."""
    return dict(zip(tests, holm([test["p"] for test in tests.values()]) if tests else [], strict=True))


def verdict(tests: Mapping[str, Mapping[str, Any]]) -> str:
    """What the tests say: what is told apart, and how much may be lost in what is not."""
    corrected = by_holm(tests)
    named = {
        key: f"{METRICS.named(key).title} {_with_interval(test, 'difference', METRICS.named(key).written)}"
        for key, test in tests.items()
    }
    apart = [named[key] for key in tests if corrected[key] < ALPHA]
    open_ = [named[key] for key in tests if corrected[key] >= ALPHA and (tests[key]["low"] or 0.0) <= -MARGIN]
    n = max((test["n"] for test in tests.values()), default=0)
    said = f"**On {n} unseen facts tuned and shipped settings differ in "
    said += " and ".join(apart) or "nothing that is told apart"
    if open_:
        said += f"; not told apart, but a loss of {100 * MARGIN:g} points or more is not excluded: {', '.join(open_)}"
    return f"{said}** (tuned less shipped, p < {ALPHA:g} by Holm)."


def _with_interval(values: Mapping[str, Any], key: str, unit: Any) -> str:
    text: str = unit.text(values[key])
    if values["low"] is None or values["low"] == values["high"]:
        return text
    return f"{text} [{unit.text(values['low'])}, {unit.text(values['high'])}]"


REPORT = Report(NAME, SCRIPT, "Tuned and shipped settings on unseen facts.", options, collect, page)

if __name__ == "__main__":
    REPORT.main()
