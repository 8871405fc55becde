"""docs/tradeoff.md: what memories beside a layer answer rightly, against what they answer wrongly.

GRACE (over its radius) and the two WISE (over the threshold) learn zsRE facts one after another. Each point of a curve
is the same learned memory with another radius or threshold: how much of the edits and of their paraphrases is answered
as asked, and in how many prompts that nobody edited the memory answers.

    python docs/reports/tradeoff.py collect   # as many trials for each editor; then the curves, on other facts
    python docs/reports/tradeoff.py page

What is finished is kept in the work folder, so that the first command goes on where it was stopped. An editor's trials
that are in the data file are not made again (--anew). `pages.py` says more of the two steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, harmonic_mean
from typing import Any

import torch
from hydra import compose, initialize_config_module
from hydra.utils import instantiate
from pages import ROOT, Collected, Made, Report, add_note, keeping_option, kept, made, noting, provenance
from torch import Tensor

from corrigenda import CodebookEdit, Edit, Fact, LanguageModel, SideMemoryEdit, load
from corrigenda.data import read_facts
from corrigenda.forward.recording import record
from corrigenda.intervals import interval
from corrigenda.models.routes import MAIN
from corrigenda.system.files import write_json, write_text
from editing import Editor, EditRefusedError, Grace, Unrelated, Wise
from editing.configuration import preset_values
from editing.memory_based.wise.margins import threshold_between
from editing.memory_based.wise.state import WiseState
from editing.shared.extending import state_of
from editing.shared.training_rows import RowsForward, SideLayer
from eval import EvalSettings
from eval.measure import measure
from eval.scoring.held_out import held_out_windows
from jobs.shared.outside import add_choices

NAME = "tradeoff"
SCRIPT = "tradeoff.py"
TEMPLATE = Path(__file__).with_name("tradeoff_page.md")
SHARED = ROOT.parent / "shared" / "data"
USES = ("eval.measure", "editing.Wise", "editing.Grace")
"""What the figures are made with: their code version is of the files of these."""

SETTINGS = EvalSettings(max_new_tokens=20, perplexity_windows=0)
WINDOWS = EvalSettings()
"""Which windows of the held-out texts are asked: those of the perplexity."""

ROWS, CHUNK = 32, 10
"""Prompts run at once; facts after which a memory is saved."""

KEYS = ("token_accuracy", "free_generation_strict", "paraphrase_token_accuracy", "paraphrase_free_generation_strict")
KINDS = ("locality", "same_form", "windows")
LIMITS = (5, 15, 30, 60, 100)
"""Of what is answered wrongly, in %: the page says what can be had below each."""
LIMIT = 30
"""The one that the page begins with: there `COMPARED` have points that answer about equally much."""
TITLES = {
    "token_accuracy": "reliability (token accuracy)",
    "free_generation_strict": "reliability (free generation)",
    "paraphrase_token_accuracy": "generalization (token accuracy)",
    "paraphrase_free_generation_strict": "generalization (free generation)",
    "locality": "locality prompts answered",
    "same_form": "same-form prompts answered",
    "windows": "held-out windows answered",
}
NAMES = {"locality": "locality", "same_form": "same-form", "windows": "windows"}

GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "grace": {"relative_radius": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)},
    "grace_wide": {"relative_radius": (0.1, 0.25), "widen": (1.25, 1.5, 2.0, 3.0)},
    "wise_whitened": {"weight": (3.5, 7.0, 14.0, 28.0), "margin": (0.6, 0.8)},
    "wise_paper": {"lr": (0.06, 0.12, 0.25, 0.5), "margin_scale": (4.0, 16.0)},
}
"""What is tuned of each editor: eight trials each, all combinations. In a first grid of `wise_paper`, lr 0.25 to 2 and
margin_scale 1 and 4, the smallest rates and the larger margins were the best, so that it was moved once that way."""

SCALES: dict[str, tuple[float, ...]] = {
    "grace": (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0),
    "grace_wide": (0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0),
    "wise_whitened": (0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0),
    "wise_paper": (0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0),
}
"""The points of a curve: what the chosen radius, its widening, or the threshold that the editor set is multiplied
by."""

LEARNED = {
    "grace": ("relative_radius",),
    "grace_wide": ("relative_radius", "widen"),
    "wise_whitened": ("margin",),
    "wise_paper": (),
}
"""Settings that what is learned does not depend on: trials that differ in these alone share it."""


@dataclass(frozen=True)
class Part:
    """The facts of a step.

    Attributes:
        edited: these are learned and scored; their locality prompts are asked, too.
        others: facts about other subjects, of which only the prompts are asked.
        described: where they come from, for the page.
    """

    edited: tuple[Fact, ...]
    others: tuple[Fact, ...]
    described: str


def options(parser: argparse.ArgumentParser) -> None:
    """The first step's options."""
    keeping_option(parser)
    parser.add_argument("--editors", default=",".join(GRIDS), help=f"comma-separated, of {', '.join(GRIDS)}")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--facts", type=Path, default=SHARED / "zsre.json", help="facts to tune on, and unrelated ones")
    parser.add_argument("--fresh", type=Path, default=SHARED / "zsre_fresh.json", help="facts of the curves")
    parser.add_argument("--offset", type=int, default=400, help="facts of --facts before those that are tuned on")
    parser.add_argument(
        "--count", type=int, default=25, help="how many are tuned on; as many after them: other subjects"
    )
    parser.add_argument(
        "--t", type=int, default=100, help="facts of --fresh that are edited; the others: other subjects"
    )
    parser.add_argument("--work", type=Path, default=ROOT / "outputs" / "tradeoff")


def collect(arguments: argparse.Namespace) -> Collected:
    """The trials of each editor that has none yet, and its curve with the settings of the best."""
    editors = [name for name in arguments.editors.split(",") if name]
    if unknown := set(editors) - set(GRIDS):
        raise SystemExit(f"no such editor: {', '.join(sorted(unknown))}; there are {', '.join(GRIDS)}")
    earlier = kept(NAME, arguments) or Collected({}, {})
    figures, runs = dict(earlier.figures), dict(earlier.runs)
    lm = load(arguments.model)
    unrelated_prompts = unrelated(arguments)

    def step(key: str, part: Part, todo: Sequence[str], found: Callable[[Shared, str], dict[str, Any]]) -> None:
        shared = Shared(lm, part, arguments.work / lm.fingerprint[:8] / key, unrelated_prompts)
        told = {"model": lm.name, "facts": part.described}
        figures[key] = figures.get(key, {"editors": {}}) | told | {"before": shared.measured()}
        for name in todo:
            figures[key]["editors"][name], runs[f"{key} {name}"] = shared.noted(name, found)

    untuned = [name for name in editors if name not in figures.get("tune", {"editors": {}})["editors"]]
    if untuned:
        step("tune", tuning_part(arguments), untuned, tune)
    chosen = {name: figures["tune"]["editors"][name]["chosen"] for name in editors}
    step("collect", final_part(arguments), editors, lambda shared, name: curve(shared, name, chosen[name]))
    return Collected(figures, runs, earlier.earlier)


# -- the facts


def tuning_part(arguments: argparse.Namespace) -> Part:
    """Facts to choose settings on, and those after them for prompts about other subjects."""
    first, n = arguments.offset, arguments.count
    facts = read_facts(arguments.facts, offset=first, limit=2 * n, on_error="skip")
    described = f"facts {first + 1} to {first + n} of {arguments.facts.name}; other subjects: the {n} after them"
    return Part(tuple(facts[:n]), tuple(facts[n:]), described)


def final_part(arguments: argparse.Namespace) -> Part:
    """Facts that nothing was chosen on: the first T are edited, and the others have other subjects."""
    facts = read_facts(arguments.fresh, on_error="skip")
    described = (
        f"the first {arguments.t} of {arguments.fresh.name}; other subjects: the {len(facts) - arguments.t} after them"
    )
    return Part(tuple(facts[: arguments.t]), tuple(facts[arguments.t :]), described)


def unrelated(arguments: argparse.Namespace) -> Unrelated:
    """What both WISE learn to leave alone: with locality prompts of facts after those that are tuned on."""
    return Unrelated(facts=str(arguments.facts), offset=arguments.offset + 2 * arguments.count, limit=200)


# -- editors and their memories


def configured(name: str, unrelated_prompts: Unrelated, n: int, settings: Mapping[str, float]) -> Editor:
    """An editor as the command line makes it, with some settings, and with room for n facts."""
    add_choices()
    with initialize_config_module("conf", version_base=None):
        editor: Editor = instantiate(compose("config", [f"editor={name}"]).editor, _convert_="all")
    if isinstance(editor, Wise):
        editor = dataclasses.replace(editor, edits_per_shard=-(-n // editor.shards), unrelated=unrelated_prompts)
    return dataclasses.replace(editor, **settings)  # type: ignore[type-var]


class RememberingGrace(Grace):
    """GRACE that learns no value twice.

    Inserted again with another radius, a fact has another ball, and balls conflict otherwise. What is learned depends
    on the fact and on where its value starts, not on the radius: the same start gives the same value, bit for bit. Only
    an entry that several facts share starts otherwise, and is learned anew.
    """

    values: dict[str, tuple[Tensor, list[float]]]

    def _learn(self, forward: RowsForward, side: SideLayer, start: Tensor) -> tuple[Tensor, list[float]]:
        asked = (forward.coefficients, forward.targets, start)
        key = hashlib.sha256(b"".join(part.detach().cpu().numpy().tobytes() for part in asked)).hexdigest()
        if key not in self.values:
            self.values[key] = super()._learn(forward, side, start)
        return self.values[key]


class Shared:
    """What the editors of a step share: the model, the facts, the prompts, and what is learned.

    Args:
        lm: the model.
        part: the facts.
        work: the step's work folder.
        unrelated_prompts: what both WISE learn to leave alone.
    """

    def __init__(self, lm: LanguageModel, part: Part, work: Path, unrelated_prompts: Unrelated) -> None:
        self.lm, self.part, self.unrelated = lm, part, unrelated_prompts
        self.facts = [dataclasses.replace(fact, locality=(), neighbourhood=(), generation=()) for fact in part.edited]
        said = json.dumps([[fact.to_dict() for fact in self.facts], [fact.statement for fact in part.others]])
        self.work = work / hashlib.sha256(said.encode()).hexdigest()[:8]  # what was learned of other facts is not these
        self.asked = {
            "locality": [lm.tokens(probe.prompt) for fact in part.edited for probe in fact.locality],
            "same_form": [lm.tokens(fact.statement) for fact in part.others],
            "windows": held_out_windows(lm, WINDOWS),
        }
        self._values: dict[str, tuple[Tensor, list[float]]] = {}

    def noted(self, name: str, found: Callable[[Shared, str], dict[str, Any]]) -> tuple[dict[str, Any], Made]:
        """What a step found of an editor, and how it was made; where all of it was there already, nothing is noted."""
        folder, there = self.work / f"made-{name}", set(self.work.glob("*.json"))
        with noting(USES) as note:
            figures = found(self, name)
        if set(self.work.glob("*.json")) != there:
            add_note(folder, note)
        return figures, made(folder)

    def learned(self, name: str, settings: Mapping[str, float]) -> SideMemoryEdit | CodebookEdit:
        """The memory that an editor makes of the facts."""
        editor = configured(name, self.unrelated, len(self.facts), settings)
        if isinstance(editor, Grace):
            grace = RememberingGrace(
                **{field.name: getattr(editor, field.name) for field in dataclasses.fields(editor)}
            )
            object.__setattr__(grace, "values", self._values)
            return grace.edit(self.lm, self.facts)
        assert isinstance(editor, Wise)
        same = {key: value for key, value in settings.items() if key not in LEARNED[name]}
        learner = configured(name, self.unrelated, len(self.facts), same)
        assert isinstance(learner, Wise)
        edit = self._side_memory(learner, self.work / "-".join([name, *(f"{k}={v:g}" for k, v in same.items())]))
        if editor.threshold == "smallest":
            return edit
        state = state_of("WISE", edit, WiseState)
        lowest = torch.tensor([math.inf if value is None else value for value in state.smallest_scores])
        far, near = torch.tensor(state.unrelated_scores), torch.tensor(state.near_scores)
        return dataclasses.replace(edit, epsilons=threshold_between(lowest, far, near, editor.margin))

    def _side_memory(self, editor: Wise, folder: Path) -> SideMemoryEdit:
        """Learned some facts at a time, and saved after them."""
        edit: Edit | None = Edit.load(folder) if (folder / "edit.json").is_file() else None
        done = 0 if edit is None else len(edit.origin.facts)
        editor.prepare(self.lm)
        for begin in range(done, len(self.facts), CHUNK):
            edit = editor.extend(self.lm, edit, self.facts[begin : begin + CHUNK])
            edit.save(folder)
        assert isinstance(edit, SideMemoryEdit)
        return edit

    def measured(self) -> dict[str, list[float]]:
        """The figures of each edited fact, of the model as it is."""
        measurements = measure(self.lm, self.facts, SETTINGS)
        return {key: [measurement.values.get(key, 0.0) for measurement in measurements] for key in KEYS}

    def point(self, edit: SideMemoryEdit | CodebookEdit) -> dict[str, Any]:
        """What an edit does: the figures of each fact, and for each prompt that nobody edited whether it answers."""
        seen = {kind: [int(answer) for answer in answered(self.lm, edit, self.asked[kind])] for kind in KINDS}
        with edit.applied(self.lm):
            return {"figures": self.measured(), "answered": seen}


def answered(lm: LanguageModel, edit: SideMemoryEdit | CodebookEdit, prompts: Sequence[Sequence[int]]) -> list[bool]:
    """For each prompt whether the memory answers it."""
    found: list[bool] = []
    with edit.applied(lm), torch.no_grad():
        for begin in range(0, len(prompts), ROWS):
            routes = record(lm, lm.batch([list(ids) for ids in prompts[begin : begin + ROWS]]), []).routes
            assert routes is not None
            found += (routes.decided[edit] != MAIN).tolist()
    return found


# -- the steps


def tune(shared: Shared, name: str) -> dict[str, Any]:
    """The trials of an editor, and the settings of the best; the first of several."""
    trials = []
    for values in itertools.product(*GRIDS[name].values()):
        settings = dict(zip(GRIDS[name], values, strict=True))
        path = shared.work / f"trial-{name}-{'-'.join(f'{value:g}' for value in values)}.json"
        if not path.is_file():
            begun = time.monotonic()
            try:
                found = shared.point(shared.learned(name, settings))
            except EditRefusedError as error:  # such as a loss that is not finite, with too large a learning rate
                found = {"refused": str(error)[:200]}
            write_json(path, {"settings": settings, **found, "seconds": time.monotonic() - begun})
        trials.append(json.loads(path.read_text(encoding="utf-8")))
        print(name, settings, f"{objective(trials[-1]):.3f}", flush=True)
    best = max(trials, key=objective)
    return {"trials": trials, "chosen": best["settings"]}


def objective(point: Mapping[str, Any]) -> float:
    """What is tuned for: the harmonic mean of three shares.

    The edits answered freely as asked, their paraphrases answered so, and the same-form prompts left alone. A trial
    that was refused is worth nothing.
    """
    if "refused" in point:
        return 0.0
    figures = point["figures"]
    shares = [fmean(figures[key]) for key in ("free_generation_strict", "paraphrase_free_generation_strict")]
    return harmonic_mean([*shares, 1 - fmean(point["answered"]["same_form"])])


def curve(shared: Shared, name: str, settings: Mapping[str, float]) -> dict[str, Any]:
    """The points of an editor's curve, with the settings that were chosen."""
    points = []
    edit: SideMemoryEdit | CodebookEdit | None = None
    for scale in SCALES[name]:
        path = shared.work / f"point-{name}-{scale:g}-{'-'.join(f'{value:g}' for value in settings.values())}.json"
        if not path.is_file():
            begun = time.monotonic()
            if name.startswith("grace"):
                dial = "widen" if name == "grace_wide" else "relative_radius"
                edit = shared.learned(name, dict(settings) | {dial: settings[dial] * scale})
            elif edit is None:
                edit = shared.learned(name, settings)
            scaled = edit
            if isinstance(edit, SideMemoryEdit):
                scaled = dataclasses.replace(edit, epsilons=scale * edit.epsilons)
            point = shared.point(scaled)
            write_json(path, {"scale": scale, **point, "seconds": time.monotonic() - begun})
        points.append(json.loads(path.read_text(encoding="utf-8")))
        print(name, scale, f"{objective(points[-1]):.3f}", flush=True)
    return {"settings": dict(settings), "points": points}


# -- the page


EDITS = "free_generation_strict"
FREE, FORCED = "paraphrase_free_generation_strict", "paraphrase_token_accuracy"
COMPARED = ("grace_wide", "wise_whitened")
"""The two whose paraphrases are compared."""
Point = Mapping[str, Any]


def page(data: Mapping[str, Any], docs: Path) -> list[Path]:
    """The page and its picture."""
    final, tuning = data["figures"]["collect"], data["figures"]["tune"]
    editors, picture = final["editors"], docs / "figures" / f"{NAME}.png"
    draw(editors, picture)
    corners = [name for name, each in tuning["editors"].items() if len(at_edge(each)) == len(each["chosen"])]
    text = TEMPLATE.read_text(encoding="utf-8").format(
        finding=finding(editors),
        limits="\n".join(at_limits(editors)),
        widen=preset_values("grace_wide")["widen"],
        widths="\n".join(widths(editors["grace_wide"])) if "grace_wide" in editors else "",
        says="\n".join(says(editors)),
        choices="\n".join(choices(tuning["editors"])),
        corners=", ".join(f"`{name}`" for name in corners) or "none",
        tuning=tuning["facts"],
        few=len(tuning["before"][FREE]),
        many=len(final["before"][FREE]),
        model=final["model"],
        facts=final["facts"],
        tokens=SETTINGS.max_new_tokens,
    )
    path = docs / f"{NAME}.md"
    write_text(path, "\n".join([text.rstrip(), *provenance(NAME, data, SCRIPT)]) + "\n")
    return [path, picture]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table."""
    yield from (f"| {' | '.join(columns)} |", "|---" * len(columns) + "|")
    for row in rows:
        yield f"| {' | '.join(row)} |"


def wrongly(point: Point) -> float:
    """The largest share of prompts that nobody edited in which the memory answers, over the kinds."""
    return max(fmean(point["answered"][kind]) for kind in KINDS)


def best(points: Sequence[Point], limit: float) -> Point:
    """The point that answers the most paraphrases freely, of those that answer at most so much wrongly (in %).

    Where there is none, the one that answers least wrongly.
    """
    within = [point for point in points if wrongly(point) <= limit / 100]
    return max(within, key=lambda point: fmean(point["figures"][FREE]), default=min(points, key=wrongly))


def finding(editors: Mapping[str, Any]) -> str:
    """The page's first sentence."""
    told = []
    for name, each in editors.items():
        of = best(each["points"], LIMIT)["figures"]
        told.append(f"`{name}` {percent(of[FREE])} % (and {percent(of[EDITS])} % of the edits)")
    n = len(next(iter(editors.values()))["points"][0]["figures"][FREE])
    return (
        f"**Where a memory may answer at most {LIMIT} % of any kind of prompts that nobody edited, it says this much "
        f"of the paraphrases of {n} zsRE edits freely: {', '.join(told)}.**"
    )


def at_limits(editors: Mapping[str, Any]) -> Iterator[str]:
    """What can be had of each editor where no more than so much is answered wrongly."""
    rows = []
    for name, each in editors.items():
        points = [best(each["points"], limit) for limit in LIMITS]
        shown = ["; ".join(percent(point["figures"][key]) for key in (FREE, FORCED)) for point in points]
        wrong = [f"({100 * wrongly(point):.1f})" for point in points]
        rows.append([name, *map(" ".join, zip(shown, wrong, strict=True))])
    if set(COMPARED) <= set(editors):
        for key, title in ((FREE, "free"), (FORCED, "forced")):
            rows.append(
                [f"{' less '.join(COMPARED)}, {title}", *(differences(editors, limit, key) for limit in LIMITS)]
            )
    yield from table(["", *(f"at most {limit} %" for limit in LIMITS)], rows)


def differences(editors: Mapping[str, Any], limit: float, key: str) -> str:
    """How much more of the paraphrases the one of `COMPARED` answers than the other at a limit, with its interval."""
    sides = [best(editors[name]["points"], limit)["figures"][key] for name in COMPARED]
    each = [one - other for one, other in zip(*sides, strict=True)]
    bounds = interval([each], range(len(each)))
    return f"{100 * fmean(each):+.1f}" + (f" [{100 * bounds[0]:.1f}, {100 * bounds[1]:.1f}]" if bounds else "")


def widths(found: Mapping[str, Any]) -> Iterator[str]:
    """The curve of the setting that a user of `grace_wide` chooses, from the rules' own radii on."""
    rows = []
    for point in found["points"]:
        if (widen := found["settings"]["widen"] * point["scale"]) >= 1:
            cells = [point["figures"][key] for key in (EDITS, FREE, FORCED)]
            cells += [point["answered"][kind] for kind in KINDS]
            rows.append([f"{widen:g}", *(percent(cell, True) for cell in cells)])
    kinds = [f"answered: {NAMES[kind]}" for kind in KINDS]
    yield from table(["`widen`", "edits, free", "paraphrases, free", "forced", *kinds], rows)


def says(editors: Mapping[str, Any]) -> Iterator[str]:
    """Sentences on single editors, each from its own figures."""

    def most(name: str, key: str) -> str:
        return percent(max((point["figures"][key] for point in editors[name]["points"]), key=fmean), True)

    if "wise_whitened" in editors:
        own = next(point for point in editors["wise_whitened"]["points"] if point["scale"] == 1)
        shares = [f"{percent(own['answered'][kind])} % of the {NAMES[kind]}" for kind in KINDS]
        yield (
            f"- `wise_whitened` at its own threshold says {percent(own['figures'][FREE])} % of the paraphrases freely, "
            f"and answers {shares[0]} questions, {shares[1]} questions and {shares[2]}."
        )
    if "grace" in editors:
        yield (f"- `grace` says {most('grace', FREE)} % of the paraphrases at most, at every radius that was tried.")
    if "wise_paper" in editors:
        yield (
            f"- `wise_paper` says {most('wise_paper', 'free_generation_strict')} % of its own edits at most, at every "
            "threshold, with the settings that were found. That says nothing of the paper's models."
        )


def choices(editors: Mapping[str, Any]) -> Iterator[str]:
    """What was chosen for each editor, whether it lies at the edge of its grid, and how many trials differed."""
    rows = []
    for name, each in editors.items():
        trials, chosen = each["trials"], " ".join(f"{key}={value:g}" for key, value in each["chosen"].items())
        results = {json.dumps([trial.get("figures"), trial.get("answered")], sort_keys=True) for trial in trials}
        score = f"{max(map(objective, trials)):.3f}"
        edge = ", ".join(f"`{key}`" for key in at_edge(each)) or "nothing"
        rows.append([name, f"`{chosen}`", score, str(len(trials)), str(len(results)), edge])
    yield from table(["editor", "chosen", "objective", "trials", "results that differ", "at its grid's edge"], rows)


def at_edge(found: Mapping[str, Any]) -> list[str]:
    """The chosen settings that are the least or the greatest that was tried."""
    tried = {key: [trial["settings"][key] for trial in found["trials"]] for key in found["chosen"]}
    return [key for key, value in found["chosen"].items() if value in (min(tried[key]), max(tried[key]))]


def percent(values: Sequence[float], with_interval: bool = False) -> str:
    """The mean of shares in %; with its interval, where each value is of a subject of its own."""
    if not values:
        return ""
    shown = f"{100 * fmean(values):.1f}"
    bounds = interval([values], range(len(values)), shares=True) if with_interval else None
    return shown if bounds is None else f"{shown} [{100 * bounds[0]:.1f}, {100 * bounds[1]:.1f}]"


def draw(editors: Mapping[str, Any], path: Path) -> None:
    """Right answers over wrong ones: a panel for each pair of them, a line for each editor."""
    from matplotlib.figure import Figure

    rights = ("free_generation_strict", "paraphrase_free_generation_strict", "paraphrase_token_accuracy")
    figure = Figure(figsize=(12, 10), layout="constrained")
    axes = figure.subplots(len(rights), len(KINDS), squeeze=False)
    for row, key in enumerate(rights):
        for column, kind in enumerate(KINDS):
            panel = axes[row][column]
            for name, found in editors.items():
                xs = [100 * fmean(point["answered"][kind]) for point in found["points"]]
                ys = [100 * fmean(point["figures"][key]) for point in found["points"]]
                [line] = panel.plot(xs, ys, marker=".", label=name)
                own = [at for at, point in enumerate(found["points"]) if point["scale"] == 1]
                panel.plot(
                    [xs[at] for at in own], [ys[at] for at in own], "o", color=line.get_color(), fillstyle="none"
                )
            panel.set(xlabel=f"{TITLES[kind]} (%)", ylabel=f"{TITLES[key]} (%)", xlim=(-3, 103), ylim=(-3, 103))
    axes[0][0].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


REPORT = Report(NAME, SCRIPT, (__doc__ or "").splitlines()[0], options, collect, page)

if __name__ == "__main__":
    REPORT.main()
