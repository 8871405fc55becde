"""docs/tradeoff.md: what memories beside a layer answer rightly, against what they answer wrongly.

GRACE (over its radius) and the two WISE (over the threshold) learn zsRE facts one after another. Each point of a curve
is the same learned memory with another radius or threshold: how much of the edits and of their paraphrases is answered
as asked, and in how many prompts that nobody edited the memory answers.

    python docs/reports/tradeoff.py tune      # as many trials for each editor, with facts 401 to 450 of zsre.json
    python docs/reports/tradeoff.py collect   # with the settings that tune chose, on facts that nobody tuned on
    python docs/reports/tradeoff.py page      # the page and its picture, from docs/data/tradeoff.json; runs nothing

`tune` and `collect` keep what is finished in the work folder, go on where they were stopped, and say at the start how
long they will take.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import itertools
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, harmonic_mean
from typing import Any

import torch
from hydra import compose, initialize_config_module
from hydra.utils import instantiate
from torch import Tensor

from corrigenda import CodebookEdit, Edit, Fact, LanguageModel, SideMemoryEdit, load
from corrigenda.data import read_facts
from corrigenda.files import write_json, write_text
from corrigenda.forward.recording import record
from corrigenda.intervals import interval
from corrigenda.models.routes import MAIN
from corrigenda.runs.environment import machine, versions
from editing import Editor, EditRefusedError, Grace, Unrelated, Wise
from editing.extending import state_of
from editing.memory_based.wise.margins import threshold_between
from editing.memory_based.wise.state import WiseState
from editing.training_rows import RowsForward, SideLayer
from eval import EvalSettings
from eval.held_out import held_out_windows
from eval.measure import measure

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"
FINDINGS = Path(__file__).with_name("tradeoff_findings.md")
"""What people say of the figures that are committed."""
DATA, PAGE = ROOT / "docs" / "data" / "tradeoff.json", ROOT / "docs" / "tradeoff.md"

SETTINGS = EvalSettings(max_new_tokens=20, perplexity_windows=0)
WINDOWS = EvalSettings()
"""Which windows of the held-out texts are asked: those of the perplexity."""

ROWS, CHUNK = 32, 10
"""Prompts run at once; facts after which a memory is saved."""

KEYS = ("token_accuracy", "free_generation_strict", "paraphrase_token_accuracy", "paraphrase_free_generation_strict")
KINDS = ("locality", "same_form", "windows")
LIMITS = (5, 15, 30, 60, 100)
"""Of what is answered wrongly, in %: the page says what can be had below each."""
TITLES = {
    "token_accuracy": "reliability (token accuracy)",
    "free_generation_strict": "reliability (free generation)",
    "paraphrase_token_accuracy": "generalization (token accuracy)",
    "paraphrase_free_generation_strict": "generalization (free generation)",
    "locality": "locality prompts answered",
    "same_form": "same-form prompts answered",
    "windows": "held-out windows answered",
}

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

SECONDS = {"grace": 2.5, "grace_wide": 2.5, "wise_whitened": 5.0, "wise_paper": 4.0, "point": 25.0}
"""For the estimate: about what a fact takes to be learned, and a point to be measured on a hundred facts (SmolLM2, two
cores)."""


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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("tune", "collect", "page"))
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
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    editors = [name for name in options.editors.split(",") if name]
    if unknown := set(editors) - set(GRIDS):
        raise SystemExit(f"no such editor: {', '.join(sorted(unknown))}; there are {', '.join(GRIDS)}")
    if options.step == "page":
        return write_page(options.data, options.page)
    lm = load(options.model)
    part = tuning_part(options) if options.step == "tune" else final_part(options)
    shared = Shared(lm, part, options.work / lm.fingerprint[:8] / options.step, unrelated(options))
    kept = json.loads(options.data.read_text(encoding="utf-8")) if options.data.is_file() else {}
    said = {"model": lm.name, "facts": part.described, "machine": machine(), "versions": versions()}
    step = kept.setdefault(options.step, {"editors": {}}) | said
    kept[options.step] = step
    step["before"] = shared.measured()
    print(f"about {estimate(options.step, editors, len(part.edited)) / 60:.0f} minutes", flush=True)
    for name in editors:
        if options.step == "tune":
            step["editors"][name] = tune(shared, name)
        else:
            tuned = kept.get("tune", {}).get("editors", {}).get(name)
            if tuned is None:
                raise SystemExit(f"no settings were chosen for {name}: run the step tune first ({options.data})")
            step["editors"][name] = curve(shared, name, tuned["chosen"])
        write_json(options.data, kept)
    print(options.data)


def estimate(step: str, editors: Sequence[str], n: int) -> float:
    """Seconds, for so many facts, if nothing is done yet."""
    total = 0.0
    for name in editors:
        learned = math.prod(len(grid) for key, grid in GRIDS[name].items() if key not in LEARNED[name])
        points = math.prod(map(len, GRIDS[name].values())) if step == "tune" else len(SCALES[name])
        total += n * SECONDS[name] * (learned if step == "tune" else 1) + points * SECONDS["point"] * n / 100
    return total


# -- the facts


def tuning_part(options: argparse.Namespace) -> Part:
    """Facts to choose settings on, and those after them for prompts about other subjects."""
    first, n = options.offset, options.count
    facts = read_facts(options.facts, offset=first, limit=2 * n, on_error="skip")
    described = f"facts {first + 1} to {first + n} of {options.facts.name}; other subjects: the {n} after them"
    return Part(tuple(facts[:n]), tuple(facts[n:]), described)


def final_part(options: argparse.Namespace) -> Part:
    """Facts that nothing was chosen on: the first T are edited, and the others have other subjects."""
    facts = read_facts(options.fresh, on_error="skip")
    described = (
        f"the first {options.t} of {options.fresh.name}; other subjects: the {len(facts) - options.t} after them"
    )
    return Part(tuple(facts[: options.t]), tuple(facts[options.t :]), described)


def unrelated(options: argparse.Namespace) -> Unrelated:
    """What both WISE learn to leave alone: with locality prompts of facts after those that are tuned on."""
    return Unrelated(facts=str(options.facts), offset=options.offset + 2 * options.count, limit=200)


# -- editors and their memories


def configured(name: str, unrelated_prompts: Unrelated, n: int, settings: Mapping[str, float]) -> Editor:
    """An editor as the command line makes it, with some settings, and with room for n facts."""
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


INTRODUCTION = """# What a memory answers, rightly and wrongly

Editors that keep facts in a memory beside the model have a dial: the radius of GRACE's balls, the threshold of WISE's
routing score. Turned up, more paraphrases are answered, and more prompts that nobody edited. So one point says little.
These are the curves.

Made by `python docs/reports/tradeoff.py page` from [data/tradeoff.json](data/tradeoff.json), which
`python docs/reports/tradeoff.py tune` and then `collect` write. Model: {model}, float32, T = {t} edits, one after
another. Facts of the curves: {final}. Nothing was chosen on them. Facts of the tuning: {tuning}.

- *Reliability* is measured on the edited prompts, *generalization* on their paraphrases: by token accuracy
  (teacher-forced) and by strict free generation (greedy, at most {tokens} tokens).
- *Answered* is the share of prompts that nobody edited in which the memory answers in place of the model: locality
  prompts; prompts of the edits' form about other subjects; windows of {window} tokens of the held-out texts (prose,
  code, dialogue).
- `wise_whitened` is this project's variant of WISE, `wise_paper` the algorithm of Wang et al. 2024.
- A point of a WISE curve is the same side memory with another epsilon: x times the one that the editor set. A point of
  `grace` is the codebook inserted again with x times the chosen radius, since the radius decides which balls conflict.
  A learned value does not depend on the radius, and is learned once. The published rules halve the radii of balls that
  conflict, so that a larger radius soon changes nothing. `grace_wide` multiplies the radii that the rules left: a point
  is the same codebook with x times the chosen widening.
- Both WISE have locality prompts of 200 further facts among their unrelated prompts.

Shares are in %, with 95 % intervals over facts, prompts or windows.
"""


def write_page(data: Path, page: Path) -> None:
    """The page and its picture, from the data file."""
    kept = json.loads(data.read_text(encoding="utf-8"))
    if "collect" not in kept:
        print(f"{data} holds the tuning alone; the page comes with the step collect")
        return
    final, tuning = kept["collect"], kept["tune"]
    n = len(final["before"][KEYS[0]])
    picture = page.parent / "figures" / "tradeoff.png"
    draw(final["editors"], picture)
    said = {"model": final["model"], "t": n, "final": final["facts"], "tuning": tuning["facts"]}
    lines = INTRODUCTION.format(**said, tokens=SETTINGS.max_new_tokens, window=WINDOWS.perplexity_window).splitlines()
    lines += ["", f"![Curves](figures/{picture.name})", "", "## The curves", ""]
    lines[lines.index("## The curves") : lines.index("## The curves")] = [*at_limits(final["editors"]), ""]
    unedited = ", ".join(f"{TITLES[key]} {percent(final['before'][key])}" for key in KEYS)
    lines += [f"Before any edit: {unedited}.", ""]
    for name, found in final["editors"].items():
        lines += [f"### {name}", "", f"Chosen: {command(name, found['settings'])}", "", *table(found["points"]), ""]
    lines += ["## The tuning", "", tuning_text(tuning), ""]
    for name, found in tuning["editors"].items():
        lines += [f"### {name}, {len(found['trials'])} trials", "", *trials_table(found["trials"]), ""]
    write_text(page, "\n".join(lines).rstrip() + "\n")
    print(page)


def at_limits(editors: Mapping[str, Any]) -> Iterator[str]:
    """What can be had of each editor where no more than so much is answered wrongly, and what people say of it."""
    yield "## What it says"
    yield ""
    yield (
        "The best of a curve's points where the memory answers at most so much of each: locality prompts, same-form "
        "prompts, held-out windows. Paraphrases by free generation, and in brackets by token accuracy, in %. The "
        "points are picked on these same facts, so that all figures are a little too good."
    )
    yield ""
    yield f"| editor | {' | '.join(f'at most {limit} %' for limit in LIMITS)} |"
    yield "|---" * (1 + len(LIMITS)) + "|"
    free, forced = "paraphrase_free_generation_strict", "paraphrase_token_accuracy"
    for name, found in editors.items():
        cells = []
        for limit in LIMITS:
            points = [p for p in found["points"] if max(fmean(p["answered"][kind]) for kind in KINDS) <= limit / 100]
            best = max(points, key=lambda point: fmean(point["figures"][free]), default=None)
            shown = [] if best is None else [percent(best["figures"][key]) for key in (free, forced)]
            cells.append("{} ({})".format(*shown) if shown else "")
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""
    yield from FINDINGS.read_text(encoding="utf-8").strip().splitlines()


def tuning_text(tuning: Mapping[str, Any]) -> str:
    return (
        "Every editor had the same number of trials, on the same facts, for the same objective: the harmonic mean of "
        "free generation on the edits, free generation on paraphrases, and the share of same-form prompts that are "
        f"left alone. Before any edit, free generation is at {percent(tuning['before']['free_generation_strict'])} %."
    )


def command(name: str, settings: Mapping[str, float]) -> str:
    """The settings as a command line has them."""
    return "`corrigenda " + " ".join([f"editor={name}", *(f"editor.{k}={v:g}" for k, v in settings.items())]) + "`"


def table(points: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A row for each point."""
    yield f"| x | {' | '.join(TITLES[key] for key in (*KEYS, *KINDS))} |"
    yield "|---" * (1 + len(KEYS) + len(KINDS)) + "|"
    for point in points:
        cells = [percent(point["figures"][key], True) for key in KEYS]
        cells += [percent(point["answered"][kind], True) for kind in KINDS]
        yield f"| {point['scale']:g} | {' | '.join(cells)} |"


def trials_table(trials: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A row for each trial."""
    names = list(trials[0]["settings"])
    yield f"| {' | '.join(names)} | {' | '.join(TITLES[key] for key in (*KEYS, *KINDS))} | objective |"
    yield "|---" * (len(names) + len(KEYS) + len(KINDS) + 1) + "|"
    for trial in trials:
        cells = [f"{trial['settings'][name]:g}" for name in names]
        if "refused" in trial:
            yield f"| {' | '.join(cells)} | refused {'| ' * (len(KEYS) + len(KINDS))}| 0.000 |"
            continue
        cells += [percent(trial["figures"][key]) for key in KEYS] + [percent(trial["answered"][kind]) for kind in KINDS]
        yield f"| {' | '.join(cells)} | {objective(trial):.3f} |"


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


if __name__ == "__main__":
    main()
