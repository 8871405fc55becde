"""docs/many_facts.md: hundreds of facts in one model: which editor, for how many?

Facts are edited in batches, by the sequential protocol, by an ordinary run of run.py for each method. What the data
file has and the store has not is kept (with --lacking nothing is run again that the file has).
"""

from collections.abc import Mapping, Sequence
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from many_facts_methods import DATA, FEW_STEPS, METHODS
from many_facts_page import NAME, digest, nothing, pictures
from options import OUTPUTS, Data, Options, asking, deadline_of, some_of
from pages import Collected, data_path, kept, read_json
from report import Report
from runs import chosen, how_made, run, without_generation, write_others

from corrigenda import load, read_facts
from corrigenda.data import FactSet, write_facts
from corrigenda.runs.store import Store, StoredRun
from corrigenda.system.files import write_json
from editing import EDITORS
from eval import METRICS, Case
from eval.protocols.journal import lines_of

TUNING = "tuning.json"  # what `many_facts_tuning.py` writes in the store
BATCH, SCORED = 100, 200
CHECKPOINTS = (100, 300, 1000)
FIXED, OTHERS = 30, 400
"""Facts after the edited ones, whose unrelated prompts are the fixed locality set; facts after those, of which some
methods learn what to leave alone."""
SETTINGS = ("eval.max_new_tokens=20",)  # of all runs: the answers are names


class Task(NamedTuple):
    """A sequence to run: of facts of a data set, written to `path`, by a method, with the overrides of run.py."""

    data: str
    method: str
    order: int | None  # a seed; None for the file's
    t: int
    path: Path
    overrides: list[str]

    @property
    def name(self) -> str:
        """How the data name it."""
        return f"{self.data} {self.method}" + ("" if self.order is None else f" order {self.order}")


options = asking(
    *("--model", "--files", "--minutes", "--write", "--anew", "overrides"),
    t=(CHECKPOINTS[-1], "facts; as many as a file has, if it has fewer"),
    batch=(BATCH, "facts edited in one call"),
    scored=(SCORED, "the most facts scored at a checkpoint"),
    checkpoints=",".join(map(str, CHECKPOINTS)),
    orders=(3, "how many orders, the file's among them"),
    order_t=(300, "facts of the other orders"),
    data=some_of(DATA),
    methods=some_of(METHODS),
    store=OUTPUTS / NAME,
    lacking=(False, "run nothing that the data file has already"),
)


def collect(arguments: Options) -> Collected | None:
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
        deadline = deadline_of(arguments)
        if not all(run([*task.overrides, *size_of(task, found, store)], store, deadline) for task in open_tasks):
            return None
    return gathered(found, arguments, earlier)


def tasks(arguments: Options) -> list[Task]:
    """The sequences, the longest and those with shared targets first; writes the files of facts."""
    methods = chosen(arguments.methods, METHODS, "method")
    known = [name for name in methods if METHODS[name].editor in EDITORS]
    if missing := sorted(set(methods) - set(known)):
        print(f"not run, there are no such editors here: {', '.join(missing)}")
    found: list[Task] = []
    for data in chosen(arguments.data, DATA, "data set"):
        path = arguments.files / DATA[data][0]
        facts = read_facts(path, on_error="skip")
        t = min(arguments.t, (len(facts) - FIXED) // arguments.batch * arguments.batch)
        if t < 1:
            raise SystemExit(f"{path} has {len(facts)} facts: too few for a batch")
        paths = write_files(facts, data, t, arguments.store / "facts")
        for order, name in product((None, *range(1, arguments.orders)), known):
            n = t if order is None else min(arguments.order_t, t)
            if order is None or not METHODS[name].control:
                found.append(Task(data, name, order, n, paths["facts"], asked(arguments, name, paths, order, n)))
    return found


def write_files(facts: FactSet, data: str, t: int, folder: Path) -> dict[str, Path]:
    """Writes the facts to edit, the fixed locality set, and others for the editors that learn from some."""
    plain = without_generation(facts)
    edited, fixed, others = plain[:t], plain[t : t + FIXED], plain[t + FIXED : t + FIXED + OTHERS]
    paths = {"facts": folder / f"{data}.jsonl", "fixed": folder / f"{data}-after-{t}.jsonl"}
    # The same text whatever T is: a run of other orders is of the first of these facts.
    for path, some in ((paths["facts"], plain), (paths["fixed"], fixed)):
        write_facts(path, some)
    return paths | {"others": write_others(others, [*edited, *fixed], edited, folder / f"{data}-others-{t}.jsonl")}


def asked(arguments: Options, name: str, paths: Mapping[str, Path], order: int | None, t: int) -> list[str]:
    """The overrides of a sequence's run."""
    method = METHODS[name]
    own = [one.format(t=t, others=paths["others"]) for one in method.settings]
    if not paths["others"].is_file():
        own = [one for one in own if not one.startswith("editor.unrelated.facts")]
    return [
        *("mode=sequential", "data=facts", f"data.path={paths['facts']}", f"data.limit={t}", "data.other_subjects=0"),
        *([] if order is None else [f"data.order={order}"]),
        *(f"job.locality.path={paths['fixed']}", f"job.locality.limit={FIXED}", "job.most_failures=1"),
        *(f"model={arguments.model}", f"editor={method.editor}"),
        *(f"job.sequential.checkpoints=[{arguments.checkpoints}]", "job.sequential.after_each=edited"),
        *(f"job.sequential.batch={arguments.batch}", f"job.sequential.scored={arguments.scored}"),
        "job.sequential.keep_edits=true",
        *(["editor.solve_on=unedited", FEW_STEPS] if method.closed else []),
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


def sequence_of(task: Task, store: Store) -> list[StoredRun]:
    """Runs of a task in the store, and shorter ones of the same facts in the same order, of any version of the code."""
    # Finished ones are last, and then the newest.

    def is_of(stored: StoredRun) -> bool:
        data = (stored.config or {}).get("data") or {}
        mine = bool(data) and store.root / task.method in stored.path.parents
        return mine and (data["path"], data.get("order")) == (str(task.path), task.order) and data["limit"] <= task.t

    return sorted(filter(is_of, store.runs()), key=lambda stored: stored.state == "finished")


def ended(task: Task, store: Store) -> StoredRun | None:
    """The finished run of a task; None where it is still to be done."""
    of_task = [one for one in sequence_of(task, store) if one.config["data"]["limit"] == task.t]
    return of_task[-1] if of_task and of_task[-1].state == "finished" else None


def has(data: Data, task: Task) -> bool:
    """Whether the figures of a data file have all of a task."""
    method = data.get(task.data, {}).get(task.method, nothing())
    points = method["points"] if task.order is None else method["orders"].get(str(task.order), [])
    return any(point["t"] >= task.t for point in points)


def size_of(task: Task, others: Sequence[Task], store: Store) -> list[str]:
    """For random updates, where the edits lie whose size they take."""
    like = (task.data, METHODS[task.method].like, task.order)
    for other in others:
        if other[:3] == like and (stored := ended(other, store)):
            return ["editor@editor.like=saved", f"editor.like.run={stored.path}"]
    return []


def gathered(found: Sequence[Task], arguments: Options, earlier: Collected | None) -> Collected:
    """The curves in the store, by data set and method, with the other orders; and the facts' figures behind them.

    What the data file has (`earlier`) stays where the store has nothing in its place.
    """
    store = Store(arguments.store)
    data: dict[str, dict[str, Any]] = {}
    given: dict[str, StoredRun] = {}
    for task in found:
        if (curve := curve_of(task, store, given))["points"]:
            method = data.setdefault(task.data, {}).setdefault(task.method, nothing())
            if task.order is None:
                method |= {**curve, "orders": method["orders"]}
            else:
                method["orders"][str(task.order)] = curve["points"]
    if not data:
        raise SystemExit(f"{arguments.store} has no sequence with a point yet")
    lm = load(str(list(given.values())[-1].config["model"]["name"]))
    shape = {"model": lm.name, "d_ffn": lm.memory(0).d_ffn, "batch": arguments.batch, "scored": arguments.scored}
    earlier = earlier or Collected({**shape, "data": {}}, {})
    if other := [f"{key} {earlier.figures[key]}" for key in shape if earlier.figures[key] != shape[key]]:
        path = data_path(NAME, arguments.docs)
        raise SystemExit(f"{path} is of {', '.join(other)}: give --anew to write it again without that")
    # Other orders are told beside the file's own, or not at all.
    data = {
        name: {method: one for method, one in methods.items() if one["points"]}
        for name, methods in added(earlier.figures["data"], data).items()
    }
    figures = {**shape, "not_run": sorted(set(METHODS).difference(*data.values())), "data": data}
    if (tuning := arguments.store / TUNING).is_file():
        figures["tuning"] = read_json(tuning)
    runs = {**earlier.runs, **{name: how_made(stored) for name, stored in given.items()}}
    return Collected(figures, runs, earlier.earlier)


def curve_of(task: Task, store: Store, given: dict[str, StoredRun]) -> dict[str, Any]:
    """What the store has of a task; notes in `given` which runs gave it."""
    # The shortest run that has a T gives its figures, so that methods that went further are like the others there.
    found, runs = nothing(), sequence_of(task, store)
    for limit in sorted({stored.config["data"]["limit"] for stored in runs}):
        points, stored = max(
            ((points_of(one.path), one) for one in runs if one.config["data"]["limit"] == limit),
            key=lambda pair: len(pair[0]),
        )
        for point in points:
            if (t := str(point["t"])) not in found["limits"]:
                found["points"] = sorted([*found["points"], point], key=itemgetter("t"))
                found["facts"][t] = facts_at(stored, point["t"], DATA[task.data][1])
                found["limits"][t] = limit
                given[f"{task.name} to {limit}"] = stored
    return found


def added(old: Data, new: Data) -> dict[str, Any]:
    """The figures of a data file, with those of the store in their place or beside them: by data set and method.

    A point takes the place of an older one at the same T, but not one of a longer run that of a shorter run: there the
    fixed prompts are others.
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
            kept = {key: one[key] | {t: other[key][t] for t in better} for key in ("facts", "limits")}
            kept |= {"points": sorted(points, key=itemgetter("t")), "orders": one["orders"] | other["orders"]}
            together[data][method] = kept
    return together


def points_of(folder: Path) -> list[dict[str, Any]]:
    """The points that a sequence has, without where its edits lie."""
    return [{key: value for key, value in point.items() if key != "edits"} for point in lines_of(folder, "point")]


def facts_at(stored: StoredRun, t: int, key: str) -> dict[str, Any]:
    """What methods are compared by at T: of each scored fact its subject, and the columns of the metric."""
    cases = [Case.from_dict(record) for record in lines_of(stored.path, "scored", t)]
    known = {case.fact: values for case in cases if (values := METRICS[key].figures(case.after.values)) is not None}
    return {
        "subjects": {fact.id: fact.subject for fact in known},
        "columns": {fact.id: list(values) for fact, values in known.items()},
    }


REPORT = Report(NAME, "many_facts.py", __doc__, options, collect, digest, pictures=pictures)
if __name__ == "__main__":
    REPORT.main()
