"""``job=dictionary``: trains a dictionary of features on an FFN, or reads one, and measures it.

Each figure is kept when it is there, and a training keeps its state, so that a run that was cut short goes on.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from corrigenda import LanguageModel
from corrigenda.dictionaries.layouts import read_dictionary, write_dictionary
from corrigenda.runs.folder import RunFolder
from corrigenda.settings.checked import checked
from jobs.shared import job
from jobs.shared.base import load_model, say, take_up
from jobs.shared.registry import register
from jobs.shared.settings import Picture, check
from locate.features.figures import DictionaryFigures, measure_dictionary, randomised
from locate.features.training import DictionaryTraining


@dataclass(frozen=True)
@checked
class DictionarySettings(DictionaryTraining):
    """``job=dictionary``: how a dictionary is trained, and which one is read in its place.

    Attributes:
        dictionary: the folder or the hub's id of one that there is (docs/locating.md); None to train one.
        control: whether one is also trained on a model of the same shape with random weights; of a dictionary that is
            read one of its layer and its sizes (its k, too, where it has one).
        picture: the suffix of pictures.
    """

    dictionary: str | None = None
    control: bool = False
    picture: Picture = ".png"


@register(
    "dictionary",
    DictionarySettings,
    aim="a dictionary of features of an FFN, trained or read: what it holds; cut short, the same run goes on",
)
class Job(job.Job):
    """Makes a dictionary and measures it over held-out text: the dictionary, figures, pictures, a table each."""

    def run(self, config: DictConfig, folder: RunFolder) -> None:
        """Makes and measures it, or goes on with it."""
        asked = check(DictionarySettings, config.job)
        if asked.dictionary is not None and not asked.control:
            asked = dataclasses.replace(asked, sampled=0)  # nothing learns
        with folder.held():
            lm = load_model(config)
            take_up(self, config, folder, model_fingerprint=lm.fingerprint)
            models = {"model": lm} | ({"random": randomised(lm, asked.seed)} if asked.control else {})
            found = {name: figures_of(asked, lm, one, folder.path / name) for name, one in models.items()}
            folder.finish({name: figures.summary() for name, figures in found.items()})
        printer = Console()
        for figures in found.values():
            printer.print(figures.table())
        say(f"dictionary, figures and pictures in {folder.path}")


def figures_of(asked: DictionarySettings, lm: LanguageModel, of: LanguageModel, place: Path) -> DictionaryFigures:
    """The figures of the dictionary of a model, over texts for the one that runs; read where they are there."""
    if any(place.glob("*.json")):
        return DictionaryFigures.load(place)
    texts, held = asked.texts(lm)
    curve: list[dict[str, float]] = []
    one = None if asked.dictionary is None else read_dictionary(asked.dictionary, asked.layer)
    if one is None or of is not lm:
        if one is not None:  # its control is of its shape
            k = one.k or asked.k
            asked = dataclasses.replace(asked, layer=one.layer, reads=one.reads, features=one.n_features, k=k)
        trained, curve = asked.train(of, texts)
        one = read_dictionary(write_dictionary(trained, place))
    figures = measure_dictionary(of, one, held, curve)
    figures.plot(place.with_suffix(asked.picture))
    figures.save(place)
    return figures
