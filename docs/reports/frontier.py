"""docs/frontier.md: however it is asked, and nothing else: what editors say on paraphrases against what they leave.

Each row is an ordinary run of run.py, in one edit, in a store. The curves come from one run of `scoped` whose gate is
open wherever a prompt names the subject: where a gate opens at a threshold follows from its scores.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from typing import Any

from frontier_gates import TITLES, AskedProbe, forms_seen, scores
from matplotlib.figure import Figure
from options import OUTPUTS, Data, Options, asking, deadline_of, some_of
from pages import Collected, kept, mean, read_json
from report import Report
from rows import against, known, row_of
from runs import chosen, finished, how_made, relative, run, without_generation

from corrigenda import Fact, load, read_facts
from corrigenda.data import FactSet, read_part, write_facts
from corrigenda.data.other_subjects import with_other_subjects
from corrigenda.data.relations import relations, relations_of
from corrigenda.runs.store import Store
from editing.gate.kept import gate_of
from editing.gate.questions import alike
from eval.leaderboard.recompute import recomputed
from eval.records import RUNNING_KIND, SUBJECT_KIND

NAME, SCRIPT = "frontier", "frontier.py"
MODELS = {"qwen2.5-coder-0.5b": "bfloat16", "smollm2-135m": "float32"}  # the models, and the precision of their runs
OPEN = "open"
FRAMES, REPLAY = ("editor=memit", "editor.frames.number=6"), "editor.rule=replay"
STEPS = ("editor.value.steps=30", "editor.value.lr=0.1", "editor.value.confident_steps=null")
WIDE = (*FRAMES, *STEPS, REPLAY, "editor.value.clamp_norm_factor=1.5")
BESIDE = ("grace_wide", "memoir", "retrieval")
"""Editors beside the weights of whose gates there is no curve: as `memit` they are drawn as points."""
ROWS: dict[str, tuple[str, tuple[str, ...]]] = {  # by name, what it is, and the settings of its run
    "memit": ("`memit`", ("editor=memit",)),
    "frames_steps": ("`memit` over six other ways to ask, too, *steps*", (*FRAMES, *STEPS)),
    **{name: (f"`{name}`", (f"editor={name}",)) for name in BESIDE},
    "scoped": ("`scoped`", ("editor=scoped",)),
    OPEN: ("the same, its gate open wherever the subject is named", ("editor=scoped", "editor.threshold=-1")),
}
TRIED: dict[str, tuple[str, tuple[str, ...]]] = {  # the same of what was tried in the weights, on facts set aside
    "memit": ROWS["memit"],
    "frames": ("`memit` over six other ways to ask, too", FRAMES),
    "frames_steps": ROWS["frames_steps"],
    "replay": ("forward replay", ("editor=memit", REPLAY)),
    "replay_wide": ("forward replay over them, *steps*, changes of up to 1.5 times the state", WIDE),
    "ratio": ("`memit`, *heavier text*", ("editor=memit", "editor.ratio=30")),
    "suit": ("`suit`", ("editor=suit",)),
    "alphaedit": ("`alphaedit`", ("editor=alphaedit",)),
}
SAYING, KEEPING = ("prompt", "paraphrases"), (SUBJECT_KIND, RUNNING_KIND)
"""Kinds of prompts on which the new object is to be said, and on which the answer is to be kept."""
GATED = ("paraphrases", *KEEPING)
SETTINGS = (
    *("eval=side_effects", f"eval.only=[{','.join((*SAYING, 'neighbourhood', 'locality', *KEEPING))}]"),
    *("eval.max_new_tokens=10", "eval.perplexity_windows=16"),
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
ASIDE = "aside"
DATA = {"counterfact": ("counterfact.json", 100), "zsre": ("zsre_fresh.json", 0), ASIDE: ("counterfact.json", 1400)}
"""By data set its file, and how many of its facts are passed over. No setting was chosen on those that follow, but on
those that are set aside."""
NEIGHBOURS = OTHERS = 5  # neighbourhood prompts of a fact; prompts that ask something else about its subject


def facts_of(of: str, count: int, files: Path) -> FactSet:
    """The facts of a data set, with prompts that ask something else about their subjects."""
    # CounterFact's ask another relation of that kind of subject in a form of ParaRel; zsRE's are its questions of other
    # relations. More than half of these forms are among those of which a gate learned that they ask something else:
    # which is noted of each (`frontier_gates.forms_seen`).
    name, first = DATA[of]
    source = read_facts(files / name, on_error="skip")
    facts = without_generation(FactSet(of, tuple(source)[first : first + count]))
    if of != "zsre":
        drawn = {fact.id: from_pararel(fact, files / "pararel") for fact in facts}
    else:
        source = FactSet(of, (*read_facts(files / "zsre.json", on_error="skip"), *source))
        drawn = {fact.id: from_questions(fact, source) for fact in facts}
    neighbourhoods = {fact.id: fact.neighbourhood[:NEIGHBOURS] for fact in facts}
    own = (replace(fact, same_subject=drawn[fact.id], neighbourhood=neighbourhoods[fact.id]) for fact in facts)
    return with_other_subjects(FactSet(of, tuple(own)), source, NEIGHBOURS)


def from_pararel(fact: Fact, folder: Path) -> tuple[str, ...]:
    """Prompts of other relations of the fact's kind of subject; first those with the same kind of answer."""
    # A relation that shares a form with the fact's own is none of them: where "{} is located in" may ask for either,
    # the fact's answer is right.
    own, draw = relations_of(fact), random.Random(fact.id)
    kinds, answers = {one.kind for one in own}, {one.answer for one in own}
    barred = {name for name in (fact.relation, *(one.wikidata for one in own)) if name}
    others = {one.wikidata: one.answer for one in relations() if one.kind in kinds and one.wikidata not in barred}
    asked = {fact.prompt, *chain.from_iterable(forms_of(name, folder) for name in barred)}
    found = []
    for name in sorted(others):
        forms = forms_of(name, folder)
        if forms and not asked.intersection(forms):
            found.append((others[name] not in answers, draw.random(), draw.choice(forms)))
    return tuple(form.replace("{}", fact.subject) for *_, form in sorted(found)[:OTHERS])


def forms_of(relation: str, folder: Path) -> list[str]:
    """ParaRel's forms of a relation that end where the object stands, with ``{}`` for the subject."""
    if not (path := folder / f"{relation}.json").is_file():
        return []
    patterns = (text.rstrip(" .") for text in read_json(path)["patterns"])
    ending = (text.removesuffix("[Y]").strip() for text in patterns if text.endswith("[Y]"))
    return [text.replace("[X]", "{}") for text in ending if text.count("[X]") == 1]


def from_questions(fact: Fact, source: Sequence[Fact]) -> tuple[str, ...]:
    """Questions of other relations; two forms are of one relation where some fact has both."""

    def forms(one: Fact) -> tuple[str, ...]:
        return (one.prompt, *(text.replace(one.subject, "{}") for text in one.paraphrases))

    same = alike(map(forms, source))
    own = {same[form] for form in forms(fact)}
    known = sorted({form for one in source for form in forms(one) if form.count("{}") == 1 and same[form] not in own})
    return tuple(form.replace("{}", fact.subject) for form in random.Random(fact.id).sample(known, OTHERS))


options = asking(
    *("--files", "--minutes", "--anew"),
    models=("qwen2.5-coder-0.5b", f"comma-separated, of {', '.join(MODELS)}"),
    data=some_of(DATA),
    rows=some_of(ROWS | TRIED),
    count=(100, "facts of each data set; a page has sets of several"),
    store=OUTPUTS / NAME,
)


def collect(arguments: Options) -> Collected | None:
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
    """Every probe that names its subject: what is right of it with the gate shut and open, and the gates' scores."""
    # *Right* is: of a prompt and a paraphrase, that the new object is said; of others, that the answer is kept.
    facts, found = [case.fact for case in cases], []
    for (number, case), kind in product(enumerate(cases), (*SAYING, *KEEPING)):
        unedited = {record.prompt: record for record in case.before.scored(kind)}
        for new in case.after.scored(kind):
            old = unedited.get(new.prompt)
            if old and case.fact.subject in new.prompt and (kind in SAYING or old.content_word):
                kept = old.content_word == new.content_word
                right = (bool(old.strict), bool(new.strict)) if kind in SAYING else (True, kept)
                found.append((AskedProbe(number, case.fact.subject, new.prompt), number, kind, *right))
    probes, *columns = (list(column) for column in zip(*found, strict=True))
    lm = load(model, dtype=MODELS[model])
    trained = [fact for part in TRAINED for fact in read_part(str(files / part))]
    return {
        **dict(zip(("fact", "kind", "shut", "open"), columns, strict=True)),
        "seen": forms_seen(probes, trained),
        "scores": {gate: [round(one, 4) for one in of] for gate, of in scores(lm, facts, probes).items()},
        "threshold": gate_of(lm).threshold,
    }


def digest(figures: Data) -> dict[str, Any]:
    """Means with intervals by set and row, paired tests against `memit`, and the curves."""
    found = {}
    for name, one in figures["sets"].items():
        rows, first, base = one["rows"], next(iter(one["rows"].values())), one["rows"].get("memit")
        found[name] = {
            "before": {key: known(first, "before", key) for key in KEYS},
            "rows": {row: {key: known(values, "after", key) for key in KEYS} for row, values in rows.items()},
            "tests": {row: against(base, values, TESTED) for row, values in rows.items() if base and row != "memit"},
            "gates": {gate: curve(one, gate) for gate in (one["probes"] or {"scores": ()})["scores"]},
            "oracle": oracle(one) if one["probes"] else None,
        }
    return {"shown": found, "what": {row: what for row, (what, _) in (ROWS | TRIED).items()}, "titles": TITLES}


def right_at(one: Data, gate: str, threshold: float, kind: str, seen: bool | None = None) -> Right:
    """Of the probes of a kind, which are right where a gate opens above a threshold; `seen`: of such forms alone."""
    probes = one["probes"]
    columns = (probes[name] for name in ("kind", "seen", "shut", "open", "fact"))
    return [
        (fact, int(opened if score > threshold else shut))
        for of, form, shut, opened, fact, score in zip(*columns, probes["scores"][gate], strict=True)
        if of == kind and seen in (None, form)
    ]


def curve(one: Data, gate: str) -> dict[str, Any]:
    """A point for each threshold, and what is said where so many answers about the subject are kept."""
    points = []
    for threshold in (-1.0, *sorted(set(one["probes"]["scores"][gate]))):
        at = {kind: right_at(one, gate, threshold, kind) for kind in GATED}
        points.append({kind: sum(right for _, right in rows) / len(rows) for kind, rows in at.items()})
        points[-1]["threshold"] = threshold
    enough = [point for point in points if min(point[SUBJECT_KIND], point[RUNNING_KIND]) >= LEFT]
    best = max(enough, key=lambda point: point["paraphrases"])
    return {"points": points[:: max(1, len(points) // SHOWN)], "best": best, **shares(one, gate, best["threshold"])}


def oracle(one: Data) -> dict[str, Any]:
    """What is said with the gate open, and at the threshold that ships: how often it opens, and what is right."""
    probes = one["probes"]
    threshold, opens = probes["threshold"], dict[str, float]()
    for kind in GATED:
        of_kind = zip(probes["kind"], probes["scores"]["learned"], strict=True)
        scored = [score for of, score in of_kind if of == kind]
        opens[kind] = sum(score > threshold for score in scored) / len(scored)
    return {"opens": opens, "open": shares(one, "learned", -1.0), "shipped": shares(one, "learned", threshold)}


def shares(one: Data, gate: str, threshold: float) -> dict[str, Any]:
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


def draw(data: Data, path: Path) -> None:
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
        for row in ("memit", *BESIDE):
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
