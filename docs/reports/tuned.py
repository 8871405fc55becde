"""docs/tuned.md: whether settings that job=tune finds, and the layers that tracing finds, beat those that ship.

Of each model and editor the first step tunes on some facts of CounterFact (runs of run.py, as anyone would start them),
and edits other facts with the settings that were found, with the shipped ones, and in the layers of ``layer=auto``.
"""

import json
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

from leaderboard_tables import MODELS
from options import FILES, OUTPUTS, Data, NotFinishedError, Options, asking, deadline_of, some_of
from pages import Collected, beside_runs, kept
from report import Draw, Report
from runs import chosen, finished, how_made, run
from xxhash import xxh3_64_hexdigest

from corrigenda.runs.store import Store, StoredRun
from editing import EDITORS
from eval import METRICS, Case, Evaluation
from eval.metrics import Metric
from eval.statistics.comparison import compare
from eval.statistics.paired import holm
from jobs.tune.page import draw

NAME, SCRIPT = "tuned", "tuned.py"
EDITED_BY = ("rome", "memit", "alphaedit", "emmet", "grace_wide")
KEYS = (
    *("score", "preservation", "answer_kept", "efficacy_success", "paraphrase_success", "neighbourhood_success"),
    *("token_accuracy", "free_generation_strict", "paraphrase_free_generation_strict", "perplexity_drift"),
)
EVALUATION = ("eval.max_new_tokens=10",)
SHIPPED, TUNED, TRACED, BORROWED = "as shipped", "tuned", "layer=auto", "as elsewhere"
Found: TypeAlias = tuple[dict[str, Any], dict[str, StoredRun]]
"""An editor's figures on a model, and their runs."""
options = asking(
    *("--minutes", "--anew", "overrides"),
    models=some_of(MODELS),
    editors=some_of(EDITED_BY),
    file=FILES / "counterfact.json",
    mode=("batch", "single or batch"),
    trials=8,
    first=(1800, "facts of the file before those that are tuned on"),
    count=(100, "facts that are tuned on"),
    unseen=(60, "facts after them, which are scored"),
    settings_of=("", "a model of the data file, whose tuned settings are scored here; nothing is tuned"),
    store=OUTPUTS / NAME,
)


def collect(asked: Options) -> Collected | None:
    """What was found of the models and editors that are asked for, beside what the data file has of others."""
    deadline = deadline_of(asked)
    models, editors = (
        chosen(given, dict.fromkeys(known), what)
        for given, known, what in ((asked.models, MODELS, "model"), (asked.editors, EDITED_BY, "editor"))
    )
    found = kept(NAME, asked) or Collected({"models": {}}, {})
    for model, editor in product(models, editors):
        newest = newest_runs(model, editor, asked, deadline)
        if asked.settings_of:
            if editor not in (there := found.figures["models"].get(asked.settings_of, {})):
                raise SystemExit(f"--settings-of {asked.settings_of}: the data file has no tuning of {editor} on it")
            one = of_borrowed(model, there[editor]["tuning"]["settings"], asked, newest)
        else:
            one = of_editor(model, editor, asked, newest)
        if one is None:
            return None
        figures, runs = one
        kind = "borrowed" if asked.settings_of else "models"
        name = f"{model} {editor}{f' as {asked.settings_of}' if asked.settings_of else ''}"
        found.figures.setdefault(kind, {}).setdefault(model, {})[editor] = figures
        mine = {way: how_made(stored) for way, stored in runs.items()}
        found = replace(found, runs=beside_runs(found.runs, name, mine))
    return found


Newest: TypeAlias = Callable[[str, list[str]], StoredRun | None]


def newest_runs(model: str, editor: str, asked: Options, deadline: float | None) -> Newest:
    """Gives the finished run of a way and its overrides, which is run where there is none; None where it fails."""
    store = asked.store.resolve()
    common = [f"editor={editor}", f"mode={asked.mode}", "data=counterfact", f"data.path={asked.file.resolve()}"]
    common += ["data.on_error=skip", f"before={store / 'before'}", *EVALUATION, *asked.overrides]

    def newest(way: str, overrides: list[str]) -> StoredRun | None:
        settings = [*common, *overrides]
        # By its settings, so that no run of others takes a failed one's place.
        name = f"{way.replace(' ', '-').replace('=', '-')}-{xxh3_64_hexdigest(str(settings).encode())}"
        there = Store(store / model / editor / name)
        if not run([*settings, f"store={there.root}"], there, deadline):
            raise NotFinishedError
        return next(iter(finished(there)), None)

    return newest


def of_borrowed(model: str, settings: Mapping[str, Any], asked: Options, newest: Newest) -> Found | None:
    """What settings that were tuned on another model do on this one; None where a run failed."""
    unseen = [f"data.offset={asked.first + asked.count}", f"data.limit={asked.unseen}", f"model={model}"]
    given = [f"editor.{name}={json.dumps(value)}" for name, value in settings.items()]
    runs = {way: newest(way, [*unseen, *more]) for way, more in ((SHIPPED, []), (BORROWED, given))}
    scored = {way: one for way, one in runs.items() if one is not None}
    if scored.keys() != runs.keys():
        return None
    first = asked.first + asked.count
    figures = {"of": asked.settings_of, "settings": dict(settings), **compared(evaluations(scored))}
    return figures | {"facts": f"facts {first + 1:,} to {first + asked.unseen:,}"}, scored


def of_editor(model: str, editor: str, asked: Options, newest: Newest) -> Found | None:
    """An editor's figures on a model, and their runs; None where one that is needed failed."""
    tuning = [f"data.offset={asked.first}", f"data.limit={asked.count}", f"model={model}"]
    if (found := newest("tuning", [*tuning, "job=tune", f"job.trials={asked.trials}"])) is None:
        return None
    unseen = [f"data.offset={asked.first + asked.count}", f"data.limit={asked.unseen}"]
    unseen += [f"data.disjoint_from={found.path}"]
    several = "layers" in {field.name for field in fields(EDITORS[editor])}  # type: ignore[arg-type]
    ways = {
        SHIPPED: [f"model={model}"],
        TUNED: [f"--config-dir={found.path / 'conf'}", f"model={Path(found.summary['model_config']).stem}"],
        TRACED: [f"model={model}", f"editor.{'layers' if several else 'layer'}=auto"],
    }
    found_of = {way: newest(way, [*unseen, *overrides]) for way, overrides in ways.items()}
    scored = {way: one for way, one in found_of.items() if one is not None}
    if not {SHIPPED, TUNED} <= scored.keys():  # without the traced layers there is a page: a model may know no fact
        return None
    last_tuned, last_scored = asked.first + asked.count, asked.first + asked.count + asked.unseen
    figures = {
        "tuning": {key: value for key, value in found.summary.items() if key not in ("model_config", "later")},
        "facts": {
            "tuned on": f"facts {asked.first + 1:,} to {last_tuned:,} of {asked.file.name}",
            "scored": f"facts {last_tuned + 1:,} to {last_scored:,}",
        },
        **compared(evaluations(scored)),
    }
    return figures, {"tuning": found, **scored}


def evaluations(scored: Mapping[str, StoredRun]) -> dict[str, Evaluation]:
    """What the runs of some ways measured."""
    return {way: Evaluation(tuple(map(Case.from_dict, one.cases()))) for way, one in scored.items()}


def compared(evaluations: Mapping[str, Evaluation]) -> dict[str, Any]:
    """The figures of all ways, and by way how it differs from what ships on the facts that both have."""
    figures = {way: {k: v for k, v in one.metrics.items() if k in KEYS} for way, one in evaluations.items()}
    subjects: dict[Hashable, Hashable] = {
        case.fact.id: case.fact.subject for one in evaluations.values() for case in one.cases
    }

    def by_fact(metric: Metric, evaluation: Evaluation) -> dict[Any, tuple[float, ...]]:
        found = {case.fact.id: metric.figures(case.after.values) for case in evaluation.cases}
        return {id_: figures for id_, figures in found.items() if figures is not None}

    tests: dict[str, dict[str, Any]] = {way: {} for way in evaluations if way != SHIPPED}
    for way, key in product(tests, KEYS):
        metric = METRICS.named(key)
        # Of one edited model there is one figure of some, and none for each fact.
        changed, shipped = (by_fact(metric, evaluations[name]) for name in (way, SHIPPED))
        if not metric.one_value and (found := compare(changed, shipped, subjects, metric.combine)):
            tests[way][key] = {name: getattr(found, name) for name in ("n", "difference", "low", "high", "p", "test")}
    return {"metrics": figures, "tests": tests}


def digest(figures: Data) -> dict[str, Any]:
    """By editor the metrics that all ways have, and the p-values, corrected for all its tests on the model."""
    found = {}
    for editor, one in figures.items():
        of = [(way, key) for way, tests in one["tests"].items() for key in tests]
        corrected = holm([one["tests"][way][key]["p"] for way, key in of])
        p: dict[str, dict[str, float]] = {way: {} for way in one["tests"]}
        for (way, key), value in zip(of, corrected, strict=True):
            p[way][key] = value
        found[editor] = {"keys": [key for key in KEYS if all(key in side for side in one["metrics"].values())], "p": p}
    return {"editors": found}


def each(data: Data) -> Iterator[tuple[str, str, Data]]:
    """The models and editors that there are, in their order, with the figures."""
    there = data["figures"]["models"]
    yield from ((model, editor, there[model][editor]) for model in MODELS for editor in there.get(model, ()))


def shown(data: Data) -> dict[str, Any]:
    """What the page shows: a part for each model and editor."""
    digests = data["digest"]["models"]
    parts = [{"model": m, "editor": e, **one, **digests[m]["editors"][e]} for m, e, one in each(data)]
    others = data["figures"].get("borrowed", {})
    borrowed = [
        {"model": m, "editor": e, **others[m][e], **of}
        for m in MODELS
        if m in others
        for e, of in digest(others[m])["editors"].items()
    ]
    return {"parts": parts, "shipped": SHIPPED, "borrowed": borrowed, "way": BORROWED}


def pictures(data: Data) -> dict[str, Draw]:
    """The trials of each model and editor."""

    def drawn(tuning: Data, data: Data, path: Path) -> None:
        draw(path, tuning)

    return {f"tuned-{model}-{editor}.png": partial(drawn, one["tuning"]) for model, editor, one in each(data)}


REPORT = Report(NAME, SCRIPT, __doc__, options, collect, digest, shown, pictures, of_models=True)
if __name__ == "__main__":
    REPORT.main()
