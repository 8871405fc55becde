"""docs/many_facts.md: hundreds of facts in one model: which editor, for how many?

    python docs/reports/many_facts.py collect [--t 1000] [--methods memit,rome] [--data counterfact] [--minutes 60]
    python docs/reports/many_facts.py page

Facts are edited in batches, one batch after another, by the sequential protocol. Each method's sequence is an ordinary
run of run.py, in a process of its own, in a store. What is finished is not done again, and what was cut short goes on:
the first command can be stopped and given again. It writes the data when all is done; with --write, of what there is.
What the data file has and the store has not is kept, with the settings that were chosen, so that a method or an order
can be added where the store of the others is gone (with --lacking nothing is run again that the file has); --anew
forgets it.
`pages.py` says more of the two steps.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from pages import ROOT, Collected, Made, Report, data_path, keeping_option, kept, provenance
from runs import how_made, run
from sequential import read_json, write_others
from words import chance, paragraph

from corrigenda import load
from corrigenda.data import FactSet, read_facts
from corrigenda.runs.store import Store, StoredRun
from corrigenda.system.files import write_json, write_text
from editing import EDITORS
from eval import METRICS, Case
from eval.protocols.curves import cell, curve_columns, draw_curves, value_at
from eval.protocols.journal import lines_of
from eval.protocols.orders import order_interval
from eval.statistics.comparison import Comparison, compare
from eval.statistics.paired import MIN_FACTS, holm

NAME = "many_facts"
SCRIPT = "many_facts.py"
TUNING = "tuning.json"
"""What `many_facts_tuning.py` writes in the store."""
BATCH, SCORED = 100, 200
CHECKPOINTS = (100, 300, 1000)
FIXED = 30
"""Facts after the edited ones: their unrelated prompts are the fixed locality set."""
OTHERS = 400
"""Facts after those, of which some methods learn what to leave alone."""
SETTINGS = ("eval.max_new_tokens=20",)
"""Of all runs: the answers are names."""
DATA: dict[str, tuple[str, str]] = {
    "counterfact": ("counterfact.json", "score"),
    "zsre": ("zsre.json", "paraphrase_free_generation_strict"),
}
"""By name the file, and the metric by which methods are compared (as on the leaderboard)."""


@dataclass(frozen=True)
class Method:
    """A row of the tables.

    Attributes:
        title: in tables and pictures; with the ratio that it has, which for the first four trials chose.
        editor: its configuration, as `editor=` takes it.
        settings: what differs from that, and from the protocol of this page.
        shares: which targets of the unedited model it takes: methods of the same ones, and other orders, find them on
            the disk. Empty where its targets are its own.
        control: whether it is a control, for which other orders say nothing.
        afterwards: whether its settings were thought of when the others' figures were known.
        like: the method the size of whose updates it takes.
        tuned_as: the method whose settings were chosen for it, too; by default its own.
    """

    title: str
    editor: str
    settings: tuple[str, ...] = ()
    shares: str = ""
    control: bool = False
    afterwards: bool = False
    like: str = ""
    tuned_as: str = ""


RATIO_10 = ("editor.ratio=10",)
LONGER = ("editor.value.steps=40", "editor.value.clamp_norm_factor=1.5")
TOGETHER = ("job.sequential.regime=together", "job.sequential.batch=1")
FEW_STEPS = "editor.value.steps=20"
"""As many as the papers': with what ships (40) all targets would have to be solved for again."""


def later(title: str, *settings: str, editor: str = "memit", shares: str = "block") -> Method:
    """A method whose settings were thought of when the figures of the others were known."""
    return Method(title, editor, settings, shares=shares, afterwards=True)


METHODS: dict[str, Method] = {
    "none": Method("no edit", "none", control=True),
    "memit": Method("MEMIT 0.1", "memit", shares="block"),
    "memit_plain": Method("plain MEMIT 0.1", "memit_plain", shares="block", tuned_as="memit"),
    "memit_blue": Method("MEMIT-BLUE 0.1", "memit_blue", shares="two blocks", tuned_as="memit"),
    "alphaedit": Method("AlphaEdit 0.1", "alphaedit", shares="block"),
    "emmet": Method("EMMET", "emmet", shares="ffn"),
    "pmet": Method("PMET", "pmet", shares="attention and ffn"),
    "memit_anew": Method("MEMIT, targets anew", "memit", (FEW_STEPS,), tuned_as="memit"),
    "memit_ratio_1": later("MEMIT 1", "editor.ratio=1"),
    "memit_ratio_10": later("MEMIT 10", *RATIO_10),
    "memit_plain_ratio_10": later("plain MEMIT 10", *RATIO_10, editor="memit_plain"),
    "memit_longer": later("MEMIT longer", *RATIO_10, *LONGER, shares="block, longer"),
    "memit_together": later("MEMIT 10, at once", *RATIO_10, *TOGETHER),
    "memit_longer_together": later("MEMIT longer, at once", *RATIO_10, *LONGER, *TOGETHER, shares="block, longer"),
    "memit_rounds_together": later(
        "MEMIT three rounds", *LONGER, *TOGETHER, editor="memit_rounds", shares="block, longer"
    ),
    "memit_four_rounds_together": later(
        "MEMIT four rounds",
        *("editor.rounds=4", *LONGER, *TOGETHER),
        editor="memit_rounds",
        shares="block, longer",
    ),
    "alphaedit_ratio_1": later("AlphaEdit 1", "editor.energy=0.3", "editor.ratio=1", editor="alphaedit"),
    "ultraedit": Method("UltraEdit", "ultraedit"),
    "crispedit": Method("CrispEdit", "crispedit"),
    "rome": Method("ROME", "rome"),
    "finetune": Method("FT, at once", "finetune", TOGETHER),
    "wise_whitened": Method(
        "WISE, whitened", "wise_whitened", ("editor.edits_per_shard={t}", "editor.unrelated.facts={others}")
    ),
    "random": Method("random", "random", control=True, like="rome"),
}
"""The methods, those first whose targets are found on the disk by others."""

DRAWN = (
    "score",
    "free_generation_strict",
    "paraphrase_free_generation_strict",
    "preservation",
    "neighbourhood_kl",
    "perplexity_drift",
)
"""What the picture has, of what was measured."""
COLUMNS = (
    "free_generation_strict",
    "first.free_generation_strict",
    "paraphrase_free_generation_strict",
    "neighbourhood_success",
    "preservation",
    "perplexity_drift",
)
"""What the tables have: the first half of the scored facts apart, too, since it is those that are forgotten."""
ABOUT_BLANKS = ("preservation", "locality_kl")
"""What says nothing where the other answers are blank."""
SHORT = {
    "score": "S",
    "free_generation_strict": "free",
    "first.free_generation_strict": "of the first",
    "efficacy_success": "ES",
    "paraphrase_success": "PS",
    "neighbourhood_success": "NS",
    "paraphrase_free_generation_strict": "free, paraphrases",
    "neighbourhood_kl": "neighbourhood KL",
}
"""Headings of this page, where those of all curves are long or say less."""
BETWEEN_ORDERS = (
    "score",
    "free_generation_strict",
    "first.token_accuracy",
    "paraphrase_free_generation_strict",
    "preservation",
    "perplexity_drift",
)
"""What methods are compared by order by order: with few orders, that much more than a test on the facts of one."""


class Pair(NamedTuple):
    """Two methods to compare, of which `of_later_batches` says that only what later batches know makes them differ."""

    left: str
    right: str
    of_later_batches: bool = False


PAIRS = (
    Pair("memit", "memit_plain", of_later_batches=True),
    Pair("memit_ratio_10", "memit_plain_ratio_10", of_later_batches=True),
    Pair("memit", "alphaedit"),
    Pair("memit_blue", "memit"),
    Pair("memit_ratio_10", "memit"),
    Pair("memit_together", "memit_ratio_10", of_later_batches=True),
    Pair("memit_longer_together", "memit_longer", of_later_batches=True),
    Pair("memit_rounds_together", "memit_longer_together"),
    Pair("memit_four_rounds_together", "memit_rounds_together"),
)
"""The planned comparisons."""
AIMS: dict[str, dict[int, dict[str, tuple[str, float]]]] = {
    "counterfact": {
        300: {
            "efficacy_success": (">=", 0.97),
            "paraphrase_success": (">=", 0.85),
            "neighbourhood_success": ("before -", 0.05),
            "perplexity_drift": ("<=", 0.1),
        },
        1000: {
            "efficacy_success": (">=", 0.9),
            "paraphrase_success": (">=", 0.75),
            "perplexity_drift": ("<=", 0.3),
        },
    },
    "zsre": {
        300: {
            "token_accuracy": (">=", 0.9),
            "paraphrase_token_accuracy": (">=", 0.75),
            "free_generation_strict": (">=", 0.7),
        }
    },
}
"""What was asked of the best closed form beforehand: ">=", "<=", or at least the figure "before" less so much."""
STRONG = 0.9
"""Methods that say so many of the facts are strong alike, and what they leave can be compared."""


@dataclass(frozen=True)
class Task:
    """A sequence to run.

    Attributes:
        data: the data set.
        method: the method's key.
        order: the seed of the order; None for the file's.
        t: how many facts.
        overrides: of run.py.
    """

    data: str
    method: str
    order: int | None
    t: int
    overrides: list[str]

    @property
    def name(self) -> str:
        """How the page names it."""
        return f"{self.data} {self.method}" + ("" if self.order is None else f" order {self.order}")


# -- the first step


def options(parser: argparse.ArgumentParser) -> None:
    """The first step's options."""
    parser.add_argument("--t", type=int, default=CHECKPOINTS[-1], help="facts; as many as a file has, if it has fewer")
    parser.add_argument("--batch", type=int, default=BATCH, help="facts edited in one call")
    parser.add_argument("--scored", type=int, default=SCORED, help="the most facts scored at a checkpoint")
    parser.add_argument("--checkpoints", default=",".join(map(str, CHECKPOINTS)))
    parser.add_argument("--orders", type=int, default=3, help="how many orders, the file's among them")
    parser.add_argument("--order-t", type=int, default=300, help="facts of the other orders")
    parser.add_argument("--data", default="", help=f"comma-separated, of {', '.join(DATA)}; by default all")
    parser.add_argument("--methods", default="", help=f"comma-separated, of {', '.join(METHODS)}; by default all")
    parser.add_argument("--model", default="smollm2-135m", help="its name in conf/model")
    parser.add_argument("--files", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the data files")
    parser.add_argument("--store", type=Path, default=ROOT / "outputs" / NAME)
    parser.add_argument("--minutes", type=float, default=None, help="stop after so long, to go on another time")
    parser.add_argument("--write", action="store_true", help="run nothing, write what there is")
    parser.add_argument("--lacking", action="store_true", help="run nothing that the data file has already")
    keeping_option(parser)
    parser.add_argument("overrides", nargs="*", help="of the configuration, for all runs, e.g. eval.max_new_tokens=10")


def collect(arguments: argparse.Namespace) -> Collected | None:
    """All sequences; None where the time was up before all was done."""
    arguments.store = arguments.store.resolve()
    earlier = kept(NAME, arguments)
    if earlier and "tuning" in earlier.figures and not (arguments.store / TUNING).is_file():
        write_json(arguments.store / TUNING, earlier.figures["tuning"])
    found = tasks(arguments)
    if not arguments.write:
        store = Store(arguments.store)
        there = earlier.figures["data"] if earlier and arguments.lacking else {}
        open_tasks = [task for task in found if not ended(task, store) and not has(there, task)]
        print(f"{len(open_tasks)} sequences are left", flush=True)
        deadline = time.monotonic() + 60 * arguments.minutes if arguments.minutes else None
        if not all(run([*task.overrides, *size_of(task, found, store)], store, deadline) for task in open_tasks):
            return None
    return gathered(found, arguments, earlier)


def tasks(arguments: argparse.Namespace) -> list[Task]:
    """The sequences, the longest and those with shared targets first; writes the files of facts."""
    methods = chosen(arguments.methods, METHODS, "method")
    known = [name for name in methods if METHODS[name].editor in EDITORS]
    if missing := sorted(set(methods) - set(known)):
        print(f"not run, there are no such editors here: {', '.join(missing)}")
    found: list[Task] = []
    for data in chosen(arguments.data, DATA, "data set"):
        facts = read_facts(arguments.files / DATA[data][0], on_error="skip")
        t = min(arguments.t, (len(facts) - FIXED) // arguments.batch * arguments.batch)
        if t < 1:
            raise SystemExit(f"{arguments.files / DATA[data][0]} has {len(facts)} facts: too few for a batch")
        paths = write_facts(facts, data, t, arguments.store / "facts")
        for order in (None, *range(1, arguments.orders)):
            n = t if order is None else min(arguments.order_t, t)
            for name in known:
                if order is None or not METHODS[name].control:
                    found.append(Task(data, name, order, n, asked(arguments, name, paths, order, n)))
    return found


def chosen(given: str, known: Mapping[str, Any], what: str) -> list[str]:
    """The names that were asked for; by default all.

    Raises:
        SystemExit: one is unknown.
    """
    names = [name for name in given.split(",") if name] or list(known)
    if unknown := set(names) - set(known):
        raise SystemExit(f"no such {what}: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return names


def write_facts(facts: FactSet, data: str, t: int, folder: Path) -> dict[str, Path]:
    """Writes the facts to edit, the fixed locality set, and others for the editors that learn from some."""
    plain = without_generation(facts)
    edited, fixed, others = plain[:t], plain[t : t + FIXED], plain[t + FIXED : t + FIXED + OTHERS]
    paths = {"facts": folder / f"{data}.jsonl", "fixed": folder / f"{data}-after-{t}.jsonl"}
    # The same text whatever T is: a run of other orders is of the first of these facts.
    for path, some in ((paths["facts"], plain), (paths["fixed"], fixed)):
        write_lines(path, some)
    return paths | {"others": write_others(others, edited, list(fixed), folder / f"{data}-others-{t}.jsonl")}


def without_generation(facts: FactSet) -> FactSet:
    """Without the prompts for fluency: sampled texts are a large part of the time and none of the question."""
    return FactSet(facts.name, tuple(replace(fact, generation=()) for fact in facts))


def write_lines(path: Path, facts: FactSet) -> None:
    """Writes facts as `data=facts` reads them."""
    write_text(path, "".join(json.dumps(one.to_dict(), ensure_ascii=False) + "\n" for one in facts))


def asked(arguments: argparse.Namespace, name: str, paths: Mapping[str, Path], order: int | None, t: int) -> list[str]:
    """The overrides of a sequence's run."""
    method = METHODS[name]
    own = [one.format(t=t, others=paths["others"]) for one in method.settings]
    if not paths["others"].is_file():
        own = [one for one in own if not one.startswith("editor.unrelated.facts")]
    return [
        *("mode=sequential", "data=facts", f"data.path={paths['facts']}", f"data.limit={t}"),
        *([] if order is None else [f"data.order={order}"]),
        *(f"job.locality.path={paths['fixed']}", f"job.locality.limit={FIXED}", "job.most_failures=1"),
        *(f"model={arguments.model}", f"editor={method.editor}"),
        *(f"job.sequential.checkpoints=[{arguments.checkpoints}]", "job.sequential.after_each=edited"),
        *(f"job.sequential.batch={arguments.batch}", f"job.sequential.scored={arguments.scored}"),
        "job.sequential.keep_edits=true",
        *(["editor.solve_on=unedited", FEW_STEPS] if method.shares else []),
        *(f"editor.{key}={value:g}" for key, value in settings_chosen(arguments.store, name).items()),
        *own,
        *(f"store={arguments.store / name}", f"before={arguments.store / 'before'}"),
        *SETTINGS,
        *arguments.overrides,
    ]


def settings_chosen(store: Path, name: str) -> Mapping[str, float]:
    """The settings that `many_facts_tuning.py` chose for a method; none where it was not tuned."""
    tuning = read_json(store / TUNING)["methods"] if (store / TUNING).is_file() else {}
    return tuning.get(METHODS[name].tuned_as or name, {}).get("chosen") or {}


def runs_of(task: Task, store: Store) -> list[StoredRun]:
    """The runs of a task in the store, of any version of the code; finished ones last, and then the newest."""
    return [run for run in sequence_of(task, store) if run.config["data"]["limit"] == task.t]


def sequence_of(task: Task, store: Store) -> list[StoredRun]:
    """Those runs, and the shorter ones of the same facts in the same order."""
    path = dict(override.split("=", 1) for override in task.overrides)["data.path"]
    of_method = [run for run in store.runs() if (store.root / task.method) in run.path.parents and run.config]
    found = [
        run
        for run in of_method
        if (run.config["data"]["path"], run.config["data"].get("order")) == (path, task.order)
        and run.config["data"]["limit"] <= task.t
    ]
    return sorted(found, key=lambda run: run.state == "finished")


def ended(task: Task, store: Store) -> bool:
    """Whether a task is done."""
    return any(run.state == "finished" for run in runs_of(task, store))


def has(data: Mapping[str, Any], task: Task) -> bool:
    """Whether the figures of a data file have all of a task."""
    method = data.get(task.data, {}).get(task.method, nothing())
    points = method["points"] if task.order is None else method["orders"].get(str(task.order), [])
    return any(point["t"] >= task.t for point in points)


def size_of(task: Task, others: Sequence[Task], store: Store) -> list[str]:
    """For random updates, where the edits lie whose size they take."""
    like = METHODS[task.method].like
    for other in others:
        if like and (other.method, other.data, other.order) == (like, task.data, task.order) and ended(other, store):
            return ["editor@editor.like=saved", f"editor.like.run={runs_of(other, store)[-1].path}"]
    return []


def gathered(found: Sequence[Task], arguments: argparse.Namespace, earlier: Collected | None) -> Collected:
    """The curves in the store, by data set and method, with the other orders; and the facts' figures behind them.

    Args:
        found: the sequences that were asked for.
        arguments: the options.
        earlier: what the data file has; it stays where the store has nothing in its place.
    """
    store = Store(arguments.store)
    data: dict[str, dict[str, Any]] = {}
    runs: dict[str, Made] = {}
    model = ""
    for task in found:
        points: dict[int, dict[str, Any]] = {}
        facts: dict[str, dict[str, Any]] = {}
        limits: dict[str, int] = {}
        # The shortest run that has a T gives its figures, so that methods that went further are like the others there.
        sequence = sequence_of(task, store)
        for limit in sorted({one.config["data"]["limit"] for one in sequence}):
            of_limit = [one for one in sequence if one.config["data"]["limit"] == limit]
            stored = max(of_limit, key=lambda one: len(points_of(one.path)))
            for point in points_of(stored.path):
                if point["t"] not in points:
                    points[point["t"]] = point
                    facts[str(point["t"])] = facts_at(stored, point["t"], DATA[task.data][1])
                    limits[str(point["t"])] = limit
                    model = str(stored.config["model"]["name"])
                    runs[f"{task.name} to {limit}"] = how_made(stored)
        if not points:
            continue
        curve = [points[t] for t in sorted(points)]
        methods = data.setdefault(task.data, {})
        if task.order is None:
            methods[task.method] = {"points": curve, "facts": facts, "limits": limits, "orders": {}}
        else:
            methods.setdefault(task.method, nothing())["orders"][str(task.order)] = curve
    if not data:
        raise SystemExit(f"{arguments.store} has no sequence with a point yet")
    lm = load(model)
    shape = {
        "model": lm.name,
        "d_ffn": lm.memory(0).d_ffn,
        "batch": arguments.batch,
        "scored": arguments.scored,
    }
    if earlier:
        path = data_path(NAME, arguments.docs)
        if other := [f"{key} {earlier.figures[key]}" for key in shape if earlier.figures[key] != shape[key]]:
            raise SystemExit(f"{path} is of {', '.join(other)}: give --anew to write it again without that")
        data = added(earlier.figures["data"], data)
        runs = {**earlier.runs, **runs}
    # Other orders are told beside the file's own, or not at all.
    data = {name: {m: one for m, one in methods.items() if one["points"]} for name, methods in data.items()}
    return Collected(
        {
            **shape,
            "not_run": sorted(name for name in METHODS if not any(name in methods for methods in data.values())),
            "data": data,
            **({"tuning": read_json(tuning)} if (tuning := arguments.store / TUNING).is_file() else {}),
        },
        runs,
        earlier.earlier if earlier else (),
    )


def nothing() -> dict[str, Any]:
    """A method without a point yet."""
    return {"points": [], "facts": {}, "limits": {}, "orders": {}}


def added(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a data file, with those of the store in their place or beside them.

    A point takes the place of an older one at the same T, but not one of a longer run that of a shorter run: there the
    fixed prompts are others.

    Args:
        old: by data set and method, as in the data file.
        new: the same, of the store.
    """
    together: dict[str, Any] = {}
    for data in dict.fromkeys((*old, *new)):
        before, now = old.get(data, {}), new.get(data, {})
        together[data] = {}
        for method in (name for name in METHODS if name in before or name in now):
            one, other = before.get(method, nothing()), now.get(method, nothing())
            better = [t for t, limit in other["limits"].items() if limit <= one["limits"].get(t, limit)]
            points = [point for point in one["points"] if str(point["t"]) not in better]
            points += [point for point in other["points"] if str(point["t"]) in better]
            merged = {"points": sorted(points, key=lambda point: int(point["t"]))}
            for key in ("facts", "limits"):
                merged[key] = one[key] | {t: other[key][t] for t in better}
            together[data][method] = merged | {"orders": one["orders"] | other["orders"]}
    return together


def points_of(folder: Path) -> list[dict[str, Any]]:
    """The points that a sequence has, without where its edits lie."""
    return [{key: value for key, value in point.items() if key != "edits"} for point in lines_of(folder, "point")]


def facts_at(stored: StoredRun, t: int, key: str) -> dict[str, Any]:
    """What methods are compared by at T: of each scored fact its subject, and the columns of the metric."""
    cases = [Case.from_dict(record) for record in lines_of(stored.path, "scored", t)]
    figures = [(case.fact, METRICS[key].figures(case.after.values)) for case in cases]
    known = [(fact, values) for fact, values in figures if values is not None]
    return {
        "subjects": {fact.id: fact.subject for fact, _ in known},
        "columns": {fact.id: list(values) for fact, values in known},
    }


# -- the second step


def page(data: Mapping[str, Any], docs: Path) -> list[Path]:
    """The page and its pictures."""
    figures = data["figures"]
    lines = ["# Many facts in one model", "", *introduction(figures)]
    pictures = []
    for name, methods in figures["data"].items():
        curves = {METHODS[key].title: found["points"] for key, found in methods.items()}
        drawn = [key for key in DRAWN if key not in unsaid(methods) and measured(methods, key)]
        picture = docs / "figures" / f"{NAME}-{name}.png"
        draw_curves(curves, drawn, picture, names=list(headings(drawn).values()), d_ffn=figures["d_ffn"])
        pictures.append(picture)
        lines += [f"## {name}", "", f"![Curves over the number of edits](figures/{picture.name})", ""]
        if unsaid(methods):
            lines += [
                *paragraph(
                    "The unedited model answers its other questions with nothing but blanks, so that how much of these",
                    "stays is neither shown nor compared.",
                ),
                "",
            ]
        columns = [key for key in COLUMNS if key not in unsaid(methods) and measured(methods, key)]
        for t in times(methods)[:-1] or times(methods):
            lines += [*table(methods, columns, t), *alike(methods, t)]
        lines += comparisons(name, methods, figures["batch"])
        lines += between_orders(methods)
        lines += aims(name, methods)
    lines += tuned(figures.get("tuning"))
    path = docs / f"{NAME}.md"
    write_text(path, "\n".join([*lines, *provenance(NAME, data, SCRIPT)]).rstrip() + "\n")
    return [path, *pictures]


def headings(keys: Sequence[str] = COLUMNS) -> dict[str, str]:
    """What the metrics are called in tables of curves."""
    known = curve_columns() | SHORT
    return {key: known.get(key, METRICS[key.rpartition(".")[2]].title) for key in keys}


def measured(methods: Mapping[str, Any], key: str) -> bool:
    """Whether some point has a metric."""
    return any(value_at(point, key) for found in methods.values() for point in found["points"])


def unsaid(methods: Mapping[str, Any]) -> tuple[str, ...]:
    """The metrics that say nothing of a data set, since most of its other answers are blank."""
    blank = [after(point, "blank_answers") or 0.0 for found in methods.values() for point in found["points"]]
    return ABOUT_BLANKS if blank and min(blank) > 0.5 else ()


def introduction(figures: Mapping[str, Any]) -> list[str]:
    """The finding, what a user should do, and what the rows are."""
    one, other = figures["data"].get("counterfact", {}), figures["data"].get("zsre", {})

    def at(t: int, key: str, method: str = "memit_ratio_10", of: Mapping[str, Any] = one) -> str:
        point = point_at(of.get(method, nothing())["points"], t)
        return (cell(value_at(point, key), key) if point else "") or "(not measured)"

    free, stays, drift = "free_generation_strict", "preservation", "perplexity_drift"
    once, thrice = (
        at(300, f"paraphrase_{free}", method, other) for method in ("memit_longer_together", "memit_rounds_together")
    )
    lines = paragraph(
        *f"""**Of 300 CounterFact facts in batches MEMIT (ratio 10) still says {at(300, free)} %, of 1,000 it says
        {at(1000, free)} %; but {at(300, stays)} % and {at(1000, stays)} % of the neighbouring prompts go on word
        for word as before.** Perplexity drifts by {at(300, drift)} and {at(1000, drift)} nats. Of 300 zsRE questions,
        all in one edit, it answers {once} % of the paraphrases where they are written once, and {thrice} % where they
        are written three times.""".split()
    )
    missing = [METHODS[name].title for name in figures["not_run"]]
    return [
        *lines,
        "",
        "- For facts with short objects take `memit`. Whether batches, one edit or `alphaedit` do best is not shown.",
        "- For questions with longer answers take `memit_rounds`, and one edit: it was not measured in batches.",
        "- Ask the first facts again as more come. Between 300 and 1,000 nothing was measured.",
        "- Where neighbouring answers have to stay word for word, none of these will do.",
        "",
        *paragraph(
            *"""**The ratio of 10 was chosen after the 1,000 had been scored, on these facts**, and is the largest that
            was run over so many (AlphaEdit: 1): what a larger one does is not known. **No closed form in batches is
            measured as it ships**: here targets are solved for on the unedited model, in 20 steps (but for *longer*
            and *rounds*); what ships solves for a later batch's on the edited model, in up to 40. AlphaEdit, EMMET,
            PMET and UltraEdit have the settings chosen below, not those that ship. Of what ships there are the
            first 100 facts, in one edit ([leaderboard.md](leaderboard.md)).""".split()
        ),
        "",
        *paragraph(
            *f"""The model is {figures["model"]} (float32, {figures["d_ffn"]} coefficients a layer);
            {figures["batch"]} facts are edited in a call. After T facts {figures["scored"]} are scored: the first and
            the latest, half of each. *Free* is strict free generation, *of the first* that of the first half,
            *locality* the share of neighbouring prompts with the same ten tokens ([Evaluation](evaluation.md) defines
            them all). Rates in %, drift in nats; 95 % intervals over subjects, of drift over windows.""".split()
        ),
        "",
        *paragraph(
            *"""A number after a name is its `ratio`, the weight of the text against the facts. *Plain* keeps no keys of
            earlier batches; *at once* is one edit of the unedited model at each T; *longer* has up to 40 steps, a
            clamp of 1.5 and ratio 10; *rounds* is that, at once and written so often; *BLUE* writes two layers. Ratios
            1 and 10, MEMIT at once, longer and rounds were looked at when the other figures were known; the fourth
            round when three had missed a part of what was asked here. [Methods](methods.md) says more. Rows differ in
            strength: that one leaves more does not make it the better one. In comparisons p is corrected by Holm for
            the table; where it is 0.05 or more the two are not told apart, and any difference in the interval may be
            there.""".split()
        ),
        "",
        *([f"Not run: {'; '.join(missing)}.", ""] if missing else []),
    ]


def times(methods: Mapping[str, Any]) -> list[int]:
    """The T that some method has, the largest first."""
    return sorted({int(point["t"]) for found in methods.values() for point in found["points"]}, reverse=True)


def point_at(points: Sequence[Mapping[str, Any]], t: int) -> Mapping[str, Any] | None:
    """The point of a curve at T."""
    return next((point for point in points if point["t"] == t), None)


def after(point: Mapping[str, Any], key: str) -> float | None:
    """A metric of a point."""
    value = value_at(point, key)
    return None if value is None else value["after"]


def table(methods: Mapping[str, Any], columns: Sequence[str], t: int) -> Iterator[str]:
    """What all methods have at T."""
    yield f"| after {t} | {' | '.join(headings(columns).values())} |"
    yield "|---" * (1 + len(columns)) + "|"
    for name, found in methods.items():
        if point := point_at(found["points"], t):
            yield f"| {METHODS[name].title} | {' | '.join(cell(value_at(point, key), key) for key in columns)} |"
    yield ""


def alike(methods: Mapping[str, Any], t: int) -> Iterator[str]:
    """What the methods leave that say about as many facts; nothing where there are not two of them."""
    points = {m: p for m, found in methods.items() if (p := point_at(found["points"], t)) and not METHODS[m].control}
    strong = {m: p for m, p in points.items() if (after(p, "free_generation_strict") or 0.0) >= STRONG}
    if len(strong) < 2:
        return
    keys = ("paraphrase_free_generation_strict", "preservation", "perplexity_drift")
    known = [key for key in keys if key not in unsaid(methods) and all(value_at(p, key) for p in strong.values())]
    told = "; ".join(span(strong, key) for key in known)
    yield from paragraph(f"The {len(strong)} that say at least {100 * STRONG:.0f} % of the facts: {told}.")
    yield ""


def span(points: Mapping[str, Mapping[str, Any]], key: str) -> str:
    """The least and the most that some methods have of a metric, and which they are."""
    values = {name: after(point, key) or 0.0 for name, point in points.items()}
    ends = [min(values, key=lambda name: values[name]), max(values, key=lambda name: values[name])]
    told = [f"{METRICS[key].written.text(values[name])} ({METHODS[name].title})" for name in ends]
    return f"{headings()[key]} {' to '.join(told)}"


def comparisons(name: str, methods: Mapping[str, Any], batch: int) -> Iterator[str]:
    """The planned comparisons on the same facts, with what they cost beside them; no T that one batch reaches."""
    key = DATA[name][1]
    costs = [cost for cost in ("preservation", "perplexity_drift") if cost not in unsaid(methods)]
    found: list[tuple[Pair, int, Comparison]] = []
    for t in times(methods)[:-1] or times(methods):
        for pair in PAIRS:
            if {pair.left, pair.right} <= methods.keys() and not (pair.of_later_batches and t <= batch):
                sides = [methods[side]["facts"].get(str(t)) for side in (pair.left, pair.right)]
                if test := paired(*sides, key):
                    found.append((pair, t, test))
    if not found:
        return
    numbers = " to ".join(map(str, sorted({min(test.n for *_, test in found), max(test.n for *_, test in found)})))
    yield from ("### Planned comparisons", "")
    yield f"One method less the other, in {METRICS[key].title} (n = {numbers}):"
    first, *others = headings([key, *costs]).values()
    names = [first, "p, Holm", *others]
    yield from ("", f"| | T | {' | '.join(names)} |", "|---" * (2 + len(names)) + "|")
    for (pair, t, test), p in zip(found, holm([test.p for *_, test in found]), strict=True):
        points = [point_at(methods[side]["points"], t) or {} for side in (pair.left, pair.right)]
        cells = [difference(test, key), chance(p), *(gap_over_orders([(points[0], points[1])], cost) for cost in costs)]
        titles = f"{METHODS[pair.left].title} less {METHODS[pair.right].title}"
        yield f"| {titles} | {t} | {' | '.join(cells)} |"
    yield ""


def difference(test: Comparison, key: str) -> str:
    """A difference with its interval."""
    text = METRICS[key].written.text
    return text(test.difference) + ("" if test.low is None else f" [{text(test.low)}, {text(test.high)}]")


def paired(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None, key: str) -> Comparison | None:
    """A paired comparison of two of `facts_at`; None where one is lacking, or few facts are common."""
    if one is None or other is None or len(one["columns"].keys() & other["columns"].keys()) < MIN_FACTS:
        return None
    return compare(one["columns"], other["columns"], one["subjects"], METRICS[key].combine)


def aims(name: str, methods: Mapping[str, Any]) -> Iterator[str]:
    """What was asked for beforehand of the best closed form, and which meet it."""
    key = DATA[name][1]
    for number, (t, wanted) in enumerate(sorted(AIMS.get(name, {}).items())):
        found = {m: p for m, one in methods.items() if METHODS[m].shares and (p := point_at(one["points"], t))}
        known = {m: value for m, p in found.items() if (value := after(p, key)) is not None}
        first = {m: value for m, value in known.items() if not METHODS[m].afterwards}
        if not first:
            continue
        top = max(first, key=lambda m: first[m])
        if number == 0:
            yield from ("### What was asked beforehand", "")
        named = headings(list(wanted))
        bounds = [
            f"{named[metric]} {'<=' if wanted[metric][0] == '<=' else '>='} {METRICS[metric].written.text(limit)}"
            for metric, limit, *_ in asked_of(found[top], wanted)
        ]
        met = [METHODS[m].title for m in known if m not in first and outcome(found[m], wanted) == "meets all"]
        yield from paragraph(
            *f"""Of the best closed form after {t}: {", ".join(bounds)}. {METHODS[top].title}, the best
            in {headings([key])[key]} of those that were planned, {outcome(found[top], wanted)}. Those
            looked at afterwards that meet all: {"; ".join(met) or "none"}.""".split()
        )
        yield ""


def outcome(point: Mapping[str, Any], wanted: Mapping[str, tuple[str, float]]) -> str:
    """Whether a point meets what was asked, and where it misses it."""
    missed = [
        f"{heading} ({METRICS[metric].written.text(figure['after'])})"
        for (metric, _, figure, met), heading in zip(
            asked_of(point, wanted), headings(list(wanted)).values(), strict=False
        )
        if not met
    ]
    return f"misses {', '.join(missed)}" if missed else "meets all"


def asked_of(
    point: Mapping[str, Any], wanted: Mapping[str, tuple[str, float]]
) -> Iterator[tuple[str, float, Mapping[str, Any], bool]]:
    """The metric, its bound, the figure, and whether it is met, of what was asked for and measured."""
    for metric, (sign, bound) in wanted.items():
        figure = value_at(point, metric)
        if figure is not None and figure["after"] is not None:
            limit = bound if sign != "before -" else float(figure["before"] or 0.0) - bound
            yield metric, limit, figure, figure["after"] <= limit if sign == "<=" else figure["after"] >= limit


def between_orders(methods: Mapping[str, Any]) -> Iterator[str]:
    """The planned comparisons order by order: what one method has more than the other in the same order."""
    named = headings(BETWEEN_ORDERS)
    rows, ends, numbers = [], set(), set()
    for left, right, *_ in PAIRS:
        one, other = (methods.get(name, nothing()) for name in (left, right))
        if one["orders"] and other["orders"]:
            curves = [({"": found["points"]} | found["orders"]) for found in (one, other)]
            common = [(curves[0][order], curves[1][order]) for order in curves[0] if order in curves[1]]
            t = min(max(int(point["t"]) for point in points) for pair in common for points in pair)
            pairs = [(point_at(a, t), point_at(b, t)) for a, b in common]
            known = [(a, b) for a, b in pairs if a is not None and b is not None]
            cells = [gap_over_orders(known, key) for key in BETWEEN_ORDERS]
            rows.append(f"| {METHODS[left].title} less {METHODS[right].title} | {' | '.join(cells)} |")
            ends.add(t)
            numbers.add(len(known))
    if rows:
        yield from ("### The same facts in other orders", "")
        yield from paragraph(
            f"What one has more than the other after {max(ends)} facts in the same order: means of {max(numbers)}",
            "orders, with 95 % t intervals over orders.",
        )
        yield from ("", f"| | {' | '.join(named[key] for key in BETWEEN_ORDERS)} |")
        yield from ("|---" * (1 + len(BETWEEN_ORDERS)) + "|", *rows, "")


def gap_over_orders(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], key: str) -> str:
    """The difference of two methods' points of the same orders, as a cell; empty where one has no figure."""
    values = [(after(one, key), after(other, key)) for one, other in pairs]
    # Rounded, since `order_interval` has none for gaps that are all the same.
    gaps = [round(one - other, 12) for one, other in values if one is not None and other is not None]
    if not gaps or len(gaps) < len(values):
        return ""
    written = METRICS[key.rpartition(".")[2]].written
    bounds = order_interval(gaps)
    between = "" if bounds is None else f" [{', '.join(map(written.text, bounds))}]"
    return f"{written.text(fmean(gaps))}{between}"


def tuned(tuning: Mapping[str, Any] | None) -> Iterator[str]:
    """Among which settings each method's were chosen, and how far that is a choice; nothing where there were none."""
    if not tuning:
        return
    yield from ("## How settings were chosen", "")
    yield from paragraph(
        f"By as many trials for each of these methods (`docs/reports/many_facts_tuning.py`), on {tuning['facts']},",
        f"edited in one batch, of which {tuning['scored']} are scored: the highest S of those whose drift is at most",
        f"{METRICS['perplexity_drift'].written.text(tuning['most_drift'])}. Plain MEMIT and MEMIT-BLUE have MEMIT's;",
        "all others have what ships, or what their names say, without trials. zsRE has the same settings.",
    )
    yield from ("", "| method | tried | chosen | at its grid's edge | S: chosen | all |", "|---" * 6 + "|")
    text = METRICS["score"].written.text
    for name, found in tuning["methods"].items():
        trials = found["trials"]
        if not (trials and found["chosen"]):
            continue
        grid = {key: sorted({trial["settings"][key] for trial in trials}) for key in found["chosen"]}
        edge = [key for key, value in found["chosen"].items() if value in (grid[key][0], grid[key][-1])]
        scores = [trial["figures"]["score"] for trial in trials if "score" in trial["figures"]]
        own = next(trial["figures"]["score"] for trial in trials if trial["settings"] == found["chosen"])
        cells = [
            METHODS[name].title.removesuffix(" 0.1"),
            "; ".join(f"{key} {', '.join(f'{value:g}' for value in values)}" for key, values in grid.items()),
            ", ".join(f"{key}={value:g}" for key, value in found["chosen"].items()),
            ", ".join(edge),
            text(own),
            f"{text(min(scores))} to {text(max(scores))}",
        ]
        yield f"| {' | '.join(cells)} |"


REPORT = Report(NAME, SCRIPT, (__doc__ or "").splitlines()[0], options, collect, page)

if __name__ == "__main__":
    REPORT.main()
