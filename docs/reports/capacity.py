"""docs/capacity.md: how many bits edits hold, over made facts, by the number of facts in one edit."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from options import OUTPUTS, Data, Options, asking
from pages import Collected, beside, kept, made, making
from report import Report

from corrigenda import load
from corrigenda.data.biographies import candidates
from corrigenda.runs.folder import RunFolder
from jobs.capacity.job import CapacitySettings, way_named
from jobs.capacity.measuring import measure_capacity
from jobs.capacity.results import PRETRAINING, Capacity, Point

NAME, SCRIPT = "capacity", "capacity.py"
USES = ("jobs.capacity.measuring", "editing.Rome", "editing.Memit", "editing.FineTune", "editing.knowledge.how")
options = asking(
    *("--model", "--anew"),
    ways=("rome:16,memit,attached,finetune", "names; with :N, up to N facts"),
    counts=("1,4,16,64", "facts in one edit, ascending"),
    at_least=(4, "facts that are edited for each count"),
    work=OUTPUTS / NAME,
)


def collect(arguments: Options) -> Collected:
    """The points of each way, beside those of the ways that the data file has."""
    lm = load(arguments.model)
    earlier = kept(NAME, arguments)
    figures = dict(earlier.figures["models"].get(lm.name, {})) if earlier else {}
    ways, runs = dict(figures.get("ways", {})), {}
    for part in arguments.ways.split(","):
        name, _, most = part.partition(":")
        counts = tuple(n for n in map(int, arguments.counts.split(",")) if not most or n <= int(most))
        asked = CapacitySettings((name,), counts, arguments.at_least)
        folder = arguments.work / lm.fingerprint[:8] / name
        with making(folder, USES):
            way = {name: way_named(name, asked.seed)}
            found = measure_capacity(lm, asked.facts(), candidates(), way, counts, asked.at_least, RunFolder(folder))
        ways[name] = [asdict(point) for point in found.curves[name]]
        runs[name] = made(folder)
        figures = {"d_ffn": found.d_ffn, "candidates": dict(found.candidates), "ways": ways}
    if earlier:
        runs = {
            run.partition(": ")[2]: how for run, how in earlier.runs.items() if run.startswith(f"{lm.name}: ")
        } | runs
    return beside(NAME, lm.name, figures, runs, arguments)


def result(model: str, figures: Data) -> Capacity:
    """The figures of a model as the job has them."""
    curves = {way: tuple(Point(**point) for point in points) for way, points in figures["ways"].items()}
    return Capacity(model, figures["d_ffn"], figures["candidates"], curves)


def digest(figures: Data) -> dict[str, Any]:
    found = result("", figures)
    words = {way: found.knee_in_words(way) for way in found.curves}
    return {"summary": found.summary()["ways"], "knees": words, "pretraining": PRETRAINING}


def draw(data: Data, path: Path) -> None:
    [(model, figures), *_] = data["figures"]["models"].items()
    result(model, figures).plot(path)


REPORT = Report(NAME, SCRIPT, __doc__, options, collect, digest, pictures={"capacity.png": draw}, of_models=True)
if __name__ == "__main__":
    REPORT.main()
