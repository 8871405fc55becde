"""docs/frontier.md: however it is asked, and nothing else: what editors say on paraphrases against what they leave.

Each row is an ordinary run of run.py, in one edit, in a store: what is finished is not done again. The curves come
from one run of `scoped` whose gate is open wherever a prompt names the subject: what an entry says there is known of
each probe, and so is what the unedited model says; where a gate opens at a threshold follows from its scores.
"""

import argparse
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from frontier_gates import TITLES, AskedProbe, forms_seen, scores
from frontier_probes import ASIDE, DATA, facts_of
from matplotlib.figure import Figure
from options import OUTPUTS, asking, deadline_of, some_of
from pages import Collected, kept, mean
from report import Report
from rows import against, known, row_of
from runs import chosen, finished, how_made, relative, run

from corrigenda import Fact, load
from corrigenda.data import read_facts, read_part, write_facts
from corrigenda.runs.store import Store
from editing.gate.kept import gate_of
from eval.leaderboard.recompute import recomputed
from eval.measurement import Measurement
from eval.records import RUNNING_KIND, SUBJECT_KIND

NAME, SCRIPT = "frontier", "frontier.py"
MODELS = {"qwen2.5-coder-0.5b": "bfloat16", "smollm2-135m": "float32"}  # the models, and the precision of their runs
OPEN = "open"
FRAMES = ("editor=memit", "editor.frames.number=6")
STEPS = ("editor.value.steps=30", "editor.value.lr=0.1", "editor.value.confident_steps=null")
ROWS: dict[str, tuple[str, tuple[str, ...]]] = {  # by name, what it is, and the settings of its run
    "memit": ("`memit`", ("editor=memit",)),
    "frames_steps": ("`memit` over six other ways to ask, too, *steps*", (*FRAMES, *STEPS)),
    "grace_wide": ("`grace_wide`", ("editor=grace_wide",)),
    "scoped": ("`scoped`", ("editor=scoped",)),
    OPEN: ("the same, its gate open wherever the subject is named", ("editor=scoped", "editor.threshold=-1")),
}
REPLAY = "editor.rule=replay"
TRIED: dict[str, tuple[str, tuple[str, ...]]] = {  # the same of what was tried in the weights, on facts set aside
    "memit": ROWS["memit"],
    "frames": ("`memit` over six other ways to ask, too", FRAMES),
    "frames_steps": ROWS["frames_steps"],
    "replay": ("forward replay", ("editor=memit", REPLAY)),
    "replay_wide": (
        "forward replay over them, *steps*, changes of up to 1.5 times the state",
        (*FRAMES, *STEPS, REPLAY, "editor.value.clamp_norm_factor=1.5"),
    ),
    "ratio": ("`memit`, *heavier text*", ("editor=memit", "editor.ratio=30")),
    "suit": ("`suit`", ("editor=suit",)),
    "alphaedit": ("`alphaedit`", ("editor=alphaedit",)),
}
KINDS = ("prompt", "paraphrases", "neighbourhood", "locality", SUBJECT_KIND, RUNNING_KIND)
SETTINGS = (
    "eval=side_effects",
    f"eval.only=[{','.join(KINDS)}]",
    "eval.max_new_tokens=10",
    "eval.perplexity_windows=16",
)
SAID = ("free_generation_strict", "paraphrase_free_generation_strict")
KEPT = ("answer_kept", f"answer_kept_{SUBJECT_KIND}", f"answer_kept_{RUNNING_KIND}", "bleed", f"bleed_{SUBJECT_KIND}")
KEYS = (*SAID, *KEPT, "preservation", "neighbourhood_kl", "perplexity_drift", "native_consistency")
TESTED = (*SAID, *KEPT)
TRAINED = ("counterfact.json[1000:1400]", "zsre.json[:241]", "zsre.json[242:400]")
"""What the gates were trained on besides the shipped relations."""
SHOWN = 60  # about so many points of a curve are in the data
Right = list[tuple[int, int]]  # by probe its fact's number, and whether it is right
ACROSS = 2  # panels side by side
LEFT = 0.95  # the share of answers about the same subject that is to be kept

options = asking(
    *("--files", "--minutes", "--anew"),
    models=("qwen2.5-coder-0.5b", f"comma-separated, of {', '.join(MODELS)}"),
    data=some_of(DATA),
    rows=some_of(ROWS | TRIED),
    count=(100, "facts of each data set; a page has sets of several"),
    store=OUTPUTS / NAME,
)


def collect(arguments: argparse.Namespace) -> Collected | None:
    """All runs and scores; None where the time was up before all was done."""
    deadline = deadline_of(arguments)
    found = kept(NAME, arguments) or Collected({"sets": {}}, {})
    models, data = chosen(arguments.models, MODELS, "model"), chosen(arguments.data, DATA, "data set")
    for model, of in product(models, data):
        path = arguments.store / f"{of}-{arguments.count}.jsonl"
        if not path.is_file():
            write_facts(path, facts_of(of, arguments.count, arguments.files))
        facts, place = tuple(read_facts(path)), Store(arguments.store / path.stem / model)
        name, known_rows = f"{model} {of} {len(facts)}", TRIED if of == ASIDE else ROWS
        one = found.figures["sets"].setdefault(name, {"rows": {}, "probes": None})
        one |= {"model": model, "data": of, "n": len(facts)}
        for row in chosen(arguments.rows, known_rows, "row"):
            overrides = [
                *("mode=batch", f"model={model}", f"model.dtype={MODELS[model]}", "data=facts"),
                *(f"data.path={relative(path)}", f"data.limit={len(facts)}", *known_rows[row][1], *SETTINGS),
                f"store={relative(place.root / row)}",
            ]
            store = Store(place.root / row)
            if not finished(store) and not run(overrides, store, deadline):
                return None
            for stored in finished(store)[:1]:
                cases = [recomputed(Fact.from_dict(record["fact"]), record) for record in stored.cases()]
                one["rows"][row] = row_of(cases, stored.summary["seconds_per_edit"], KEYS)
                found.runs[f"{name}: {row}"] = how_made(stored)
                if row == OPEN:
                    one["probes"] = probes_of(model, cases, arguments.files)
    return found


def probes_of(model: str, cases: Sequence[Any], files: Path) -> dict[str, Any]:
    """Every probe that names its subject: what is right of it with the gate shut and open, and the gates' scores.

    *Right* is: of a prompt and a paraphrase, that the new object is said; of others, that the answer is kept.
    """
    probes, kinds, shut, opened = [], [], [], []
    for number, case in enumerate(cases):
        for kind in ("prompt", "paraphrases", SUBJECT_KIND, RUNNING_KIND):
            for old, new in pairs(case.before, case.after, kind):
                if case.fact.subject not in new.prompt or (
                    kind in (SUBJECT_KIND, RUNNING_KIND) and not old.content_word
                ):
                    continue
                probes.append(AskedProbe(number, case.fact.subject, new.prompt))
                kinds.append(kind)
                said = kind in ("prompt", "paraphrases")
                shut.append(bool(old.strict) if said else True)
                opened.append(bool(new.strict) if said else old.content_word == new.content_word)
    lm = load(model, dtype=MODELS[model])
    trained = [fact for part in TRAINED for fact in read_part(str(files / part))]
    return {
        "fact": [probe.fact for probe in probes],
        "kind": kinds,
        "shut": shut,
        "open": opened,
        "seen": forms_seen(probes, trained),
        "scores": {
            gate: [round(score, 4) for score in found]
            for gate, found in scores(lm, [case.fact for case in cases], probes).items()
        },
        "threshold": gate_of(lm).threshold,
    }


def pairs(before: Measurement, after: Measurement, kind: str) -> list[tuple[Any, Any]]:
    """A kind's records before and after, by prompt."""
    old = {record.prompt: record for record in before.scored(kind)}
    return [(old[record.prompt], record) for record in after.scored(kind) if record.prompt in old]


def digest(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Means with intervals by set and row, paired tests against `memit`, and the curves."""
    found = {}
    for name, one in figures["sets"].items():
        rows = {row: {key: known(values, "after", key) for key in KEYS} for row, values in one["rows"].items()}
        base = one["rows"].get("memit")
        found[name] = {
            "before": {key: known(next(iter(one["rows"].values())), "before", key) for key in KEYS},
            "rows": rows,
            "tests": {
                row: against(base, values, TESTED) for row, values in one["rows"].items() if base and row != "memit"
            },
            "gates": {gate: curve(one, gate) for gate in (one["probes"] or {"scores": ()})["scores"]},
            "oracle": oracle(one) if one["probes"] else None,
        }
    return {"shown": found, "what": {row: what for row, (what, _) in (ROWS | TRIED).items()}, "titles": TITLES}


def right_at(one: Mapping[str, Any], gate: str, threshold: float, kind: str, seen: bool | None = None) -> Right:
    """Of the probes of a kind, which are right where a gate opens above a threshold; `seen`: of such forms alone."""
    probes = one["probes"]
    rows = zip(
        *(probes[name] for name in ("kind", "seen", "shut", "open", "fact")), probes["scores"][gate], strict=True
    )
    return [
        (fact, int(opened if score > threshold else shut))
        for of, form, shut, opened, fact, score in rows
        if of == kind and seen in (None, form)
    ]


def curve(one: Mapping[str, Any], gate: str) -> dict[str, Any]:
    """A point for each threshold, and what is said where so many answers about the subject are kept."""
    points = []
    for threshold in (-1.0, *sorted(set(one["probes"]["scores"][gate]))):
        at = {kind: right_at(one, gate, threshold, kind) for kind in ("paraphrases", SUBJECT_KIND, RUNNING_KIND)}
        points.append({kind: sum(right for _, right in rows) / len(rows) for kind, rows in at.items()})
        points[-1]["threshold"] = threshold
    enough = [point for point in points if min(point[SUBJECT_KIND], point[RUNNING_KIND]) >= LEFT]
    best = max(enough, key=lambda point: point["paraphrases"])
    return {"points": points[:: max(1, len(points) // SHOWN)], "best": best, **shares(one, gate, best["threshold"])}


def oracle(one: Mapping[str, Any]) -> dict[str, Any]:
    """What is said with the gate open, and at the threshold that ships: how often it opens, and what is right."""
    threshold = one["probes"]["threshold"]
    open_at = {
        kind: [
            score > threshold
            for of, score in zip(one["probes"]["kind"], one["probes"]["scores"]["learned"], strict=True)
            if of == kind
        ]
        for kind in ("paraphrases", SUBJECT_KIND, RUNNING_KIND)
    }
    opened = {kind: sum(found) / len(found) for kind, found in open_at.items()}
    return {"opens": opened, "open": shares(one, "learned", -1.0), "shipped": shares(one, "learned", threshold)}


def shares(one: Mapping[str, Any], gate: str, threshold: float) -> dict[str, Any]:
    """What is right at a threshold, with intervals over subjects; of paraphrases also by whether the form was seen."""
    subjects = next(iter(one["rows"].values()))["subjects"]
    asked = [("prompt", None), ("paraphrases", None), ("paraphrases", True), ("paraphrases", False)]
    asked += [(SUBJECT_KIND, None), (SUBJECT_KIND, False), (RUNNING_KIND, None)]
    found = {}
    for kind, seen in asked:
        rows = right_at(one, gate, threshold, kind, seen)
        label = kind if seen is None else f"{kind}_{'seen' if seen else 'unseen'}"
        if rows:
            found[label] = mean([right for _, right in rows], [subjects[fact] for fact, _ in rows], shares=True)
            found[label]["n"] = len(rows)
    return found


def draw(data: Mapping[str, Any], path: Path) -> None:
    """The curves of all gates, a panel for each set, with the rows that have no gate as points."""
    shown = {name: one for name, one in data["digest"]["shown"].items() if one["gates"]}
    lines = -(-len(shown) // ACROSS)
    figure = Figure(figsize=(6 * ACROSS, 5 * lines), layout="constrained")
    axes = figure.subplots(lines, ACROSS, squeeze=False)
    for axis in axes.flat[len(shown) :]:
        axis.set_axis_off()
    for axis, (name, one) in zip(axes.flat, shown.items(), strict=False):
        for gate, found in one["gates"].items():
            xy = [(100 * point[SUBJECT_KIND], 100 * point["paraphrases"]) for point in found["points"]]
            axis.plot(*zip(*sorted(xy), strict=True), label=TITLES[gate])
        for row in ("memit", "grace_wide"):
            if row in one["rows"]:
                of = [one["rows"][row][key] for key in (f"answer_kept_{SUBJECT_KIND}", SAID[1])]
                if all(of):
                    axis.plot(*(100 * value["mean"] for value in of), "o", label=row)
        axis.set(title=name, xlabel="answers kept about the same subject, %", ylabel="says it on paraphrases, %")
        axis.axvline(100 * LEFT, color="grey", lw=0.5)
        axis.legend(fontsize=7, loc="lower left")
    figure.savefig(path, dpi=120)


REPORT = Report(NAME, SCRIPT, __doc__, options, collect, digest, pictures={"frontier.png": draw}, timed=True)

if __name__ == "__main__":
    REPORT.main()
