"""Which settings the editors of docs/many_facts.md get: as many trials for each, on facts that the page does not score.

    python docs/reports/many_facts_tuning.py [--methods crispedit,memit] [--minutes 60]

The trials on the page were made with `--count 100 --methods memit,alphaedit,ultraedit,emmet,pmet` and the override
`job.sequential.scored=50`. Each is an ordinary run of run.py, in batches as on the page, in a store of its own; the
command can be stopped and given again. It writes the trials and the best settings to tuning.json in the store, where
`many_facts.py collect` takes them. The best is the trial of the highest score of those whose perplexity drift is at
most `MOST_DRIFT`, since the score can reward a wrecked model; where none is, that of the least drift.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from many_facts import BATCH, FIXED, OTHERS, TUNING, asked, points_of, write_files
from many_facts_methods import DATA
from many_facts_page import NAME
from options import OUTPUTS, Data, asking, deadline_of, some_of
from rows import after_at
from runs import chosen, combinations, run

from corrigenda.data import FactSet, read_facts
from corrigenda.runs.store import Store
from corrigenda.system.files import write_json

FIRST, COUNT = 1000, 200  # so many facts of the file come before those that are tuned on, and so many are these
FILE = "counterfact"
MOST_DRIFT = 0.1  # nats: what was asked beforehand of the best closed form at T = 300
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "memit": {"ratio": (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)},
    "alphaedit": {"energy": (0.02, 0.1, 0.3), "ratio": (0.1, 1.0)},
    "emmet": {"eps": (0.001, 0.01, 0.1, 0.3, 1.0, 3.0)},
    "pmet": {"ratio": (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)},
    "ultraedit": {"depth": (0.8, 0.9), "step": (0.2, 0.4, 0.8)},
    "crispedit": {"gamma": (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)},
    "rome": {"value.clamp_norm_factor": (0.75, 1.0, 1.5, 2.0, 3.0, 4.0)},
    "finetune": {"lr": (1e-4, 3e-4, 1e-3), "stop": (0.02, 0.2)},
    "wise_whitened": {"weight": (3.5, 7.0, 14.0), "margin": (0.6, 0.8)},
}  # what is tuned of each method, by the editor's settings. Other forms of MEMIT have MEMIT's (`Method.tuned_as`)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the trials and prints the best."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asking(
        *("--model", "--files", "--minutes", "overrides"),
        methods=some_of(GRIDS),
        first=(FIRST, "facts of the file before those that are tuned on"),
        count=(COUNT, "how many facts are tuned on"),
        batch=(BATCH, "facts edited in one call"),
        store=OUTPUTS / NAME,
    )(parser)
    options = parser.parse_args(arguments)
    store = options.store.resolve()
    options.checkpoints, options.scored, options.store = str(options.count), options.count, store / "tuning"
    facts = read_facts(options.files / DATA[FILE][0], on_error="skip")
    part = tuple(facts)[options.first : options.first + options.count + FIXED + OTHERS]
    if len(part) < options.count:
        raise SystemExit(f"{DATA[FILE][0]} has {len(facts)} facts, and none to tune on after the first {options.first}")
    paths = write_files(FactSet(FILE, part), FILE, options.count, options.store / "facts")
    deadline = deadline_of(options)
    found: dict[str, Any] = {}
    scored = 0
    for name in chosen(options.methods, GRIDS, "method"):
        trials = []
        for settings in combinations(GRIDS[name]):
            own = options.store / name / "-".join(f"{value:g}" for value in settings.values())
            overrides = [one for one in asked(options, name, paths, None, options.count) if "store=" not in one[:6]]
            overrides += [f"store={own}", *(f"editor.{key}={value}" for key, value in settings.items())]
            if point_in(own) is None and not run(overrides, Store(own), deadline):
                raise SystemExit("not finished yet; give the same command again to go on")
            point = point_in(own)
            # What could not be computed is absent, and all is where the run failed.
            values = {key: after_at(point or {}, key) for key in (DATA[FILE][1], "perplexity_drift")}
            figures = {key: value for key, value in values.items() if value is not None}
            scored = max(scored, 0 if point is None else int(point["n_scored"]))
            trials.append({"settings": settings, "figures": figures})
            print(name, settings, trials[-1]["figures"], flush=True)
        best = best_of(trials)
        found[name] = {"trials": trials, "chosen": None if best is None else best["settings"]}
        print(f"{name}: {'no trial has figures' if best is None else best['settings']}", flush=True)
    described = f"facts {options.first + 1} to {options.first + options.count} of {DATA[FILE][0]}"
    path = store / TUNING
    write_json(path, {"facts": described, "scored": scored, "most_drift": MOST_DRIFT, "methods": found})
    print(path)


def point_in(folder: Path) -> Data | None:
    """The last point of the newest finished run of a trial; None where there is none."""
    ended = [stored for stored in Store(folder).runs() if stored.state == "finished"]
    points = points_of(ended[-1].path) if ended else []
    return points[-1] if points else None


def best_of(trials: Sequence[Data]) -> Data | None:
    """The trial of the highest score among those that leave the perplexity alone; None where none has figures."""
    score = DATA[FILE][1]
    known = [trial for trial in trials if {score, "perplexity_drift"} <= trial["figures"].keys()]
    sound = [trial for trial in known if trial["figures"]["perplexity_drift"] <= MOST_DRIFT]
    if sound:
        return max(sound, key=lambda trial: float(trial["figures"][score]))
    return min(known, key=lambda trial: float(trial["figures"]["perplexity_drift"]), default=None)


if __name__ == "__main__":
    main()
