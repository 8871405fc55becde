"""What a locator is, and what it finds: all that `survey` and the jobs ask of one.

A locator is a class of settings, most often a frozen dataclass. A new one is a file with it and its result, and a
configuration that names it.
"""

from pathlib import Path
from typing import Any, Protocol, TypeVar

from rich.table import Table

from corrigenda import Fact, LanguageModel


class Result(Protocol):
    """What a locator finds of one fact, or what several such results come to: a frozen object.

    The class of a result also has a static or class method ``load(folder)``, which reads what `save` wrote.
    """

    def summary(self) -> dict[str, Any]:
        """The figures in plain values."""
        ...

    def table(self) -> Table:
        """The main figures as a table for a terminal."""
        ...

    def plot(self, path: str | Path) -> None:
        """Draws it, as PNG, PDF or SVG, by the path's suffix."""
        ...

    def save(self, folder: str | Path) -> None:
        """Writes it to a folder."""
        ...


R_co = TypeVar("R_co", bound=Result, covariant=True)


class Locator(Protocol[R_co]):
    """Settings that find something in a model about a fact: `CausalTrace`, `Neurons`.

    Its attribute ``result`` is the class of its results; else the configuration names that (``job.result``).
    """

    def check(self, lm: LanguageModel) -> None:
        """Says whether the settings fit a model.

        Raises:
            ValueError: they do not.
            IndexError: the model has no such layer.
        """
        ...

    def find(self, lm: LanguageModel, fact: Fact, answer: str | None = None) -> R_co:
        """Looks for one fact. Raises UnknownFactError: the model does not know it."""
        ...
