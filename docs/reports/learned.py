"""docs/learned.md: how the networks of editors that learn to edit learned, on facts that they were not trained on.

The curves lie in the networks' files. What trained editors then do is read from a store of ordinary runs.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from leaderboard_tables import LEARNED
from options import OUTPUTS, Data, Options, asking
from pages import Collected, kept
from report import Report, model_by_model
from runs import how_made
from safetensors import SafetensorError, safe_open

from corrigenda.runs.store import Store
from corrigenda.system.files import cache_folder
from locate.pictures import chart, plot_text

NAME, SCRIPT = "learned", "learned.py"
FELL = 0.01  # a curve whose last fifth lies so much below the fifth before it, as a share of that, still falls
COLUMNS = {
    "efficacy_success": "ES",
    "paraphrase_success": "PS",
    "neighbourhood_success": "NS",
    "free_generation_strict": "says it",
    "paraphrase_free_generation_strict": "on paraphrases",
    "answer_kept": "answers kept",
    "preservation": "same ten words",
    "perplexity_drift": "drift",
}
options = asking(
    "--anew",
    networks=(Path(), "a folder of trained networks; by default those that were kept"),
    store=(OUTPUTS / NAME, "runs of run.py: the networks' editors, and others on the same facts"),
)


def collect(arguments: Options) -> Collected:
    """The curves of the networks that there are, and the runs of the store, beside those of the data file."""
    folder = cache_folder() / "hypernetworks" if arguments.networks == Path() else arguments.networks
    found = kept(NAME, arguments) or Collected({"models": {}}, {})
    for path in sorted(one for editor in LEARNED for one in folder.glob(f"*/{editor}.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                said = json.loads(file.metadata()["network"])
            one = {"layers": said["layers"], "facts": len(said["facts"]), **said["made"]}
            if not one["curve"]:
                raise ValueError("the curve has no points")
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise SystemExit(f"{path}: no network with a learning curve ({error!r})") from None
        found.figures["models"].setdefault(said["model"], {})[said["editor"]] = one
    for stored in Store(arguments.store).runs():  # the oldest first: of two of a name the newest counts
        if stored.state != "finished":
            continue
        told = stored.summary
        metrics = {key: told["metrics"][key] for key in COLUMNS if key in told["metrics"]}
        row = {"facts": told["n_facts"], "refused": told["n_failed"], "metrics": metrics}
        of, editor = (told["model"], told["mode"]), told["editor"]
        found.figures.setdefault("edits", {}).setdefault(" ".join(of), {})[editor] = row
        found.runs[" ".join((*of, editor))] = how_made(stored)
    return found


def digest(figures: Data) -> dict[str, Any]:
    """By editor where its curve began, its least point, and whether it still falls."""
    found = {}
    for editor, one in figures.items():
        curve = one["curve"]
        fifth = max(1, len(curve) // 5)
        earlier, last = curve[-2 * fifth : -fifth] or curve, curve[-fifth:]
        least = min(curve, key=lambda point: point["loss"])
        found[editor] = {"begin": curve[0], "least": least, "falls": mean_loss(last) < (1 - FELL) * mean_loss(earlier)}
    return {"curves": found}


def mean_loss(points: Sequence[Data]) -> float:
    """Of points of a curve."""
    return fmean(point["loss"] for point in points)


def draw(data: Data, path: Path) -> None:
    """The held-out loss by step, as a share of where it began."""
    with chart(path, plot_text("what networks of editors learn, on held-out facts", 90)) as axes:
        for model, editors in data["figures"]["models"].items():
            for editor, one in editors.items():
                steps, losses = zip(*((point["step"], point["loss"]) for point in one["curve"]), strict=True)
                axes.plot(steps, [loss / losses[0] for loss in losses], label=f"{editor}, {model}")
        axes.set_xlabel("steps")
        axes.set_ylabel("loss, as a share of where it began")
        axes.legend()


def shown(data: Data) -> dict[str, Any]:
    """The curves by model, and by model and mode what the editors do."""
    return model_by_model(data) | {"edits": data["figures"].get("edits", {}), "columns": COLUMNS}


REPORT = Report(
    *(NAME, SCRIPT, __doc__, options, collect, digest, shown),
    pictures={"learned.png": draw},
    of_models=True,
)
if __name__ == "__main__":
    REPORT.main()
