"""`Grid`: a table of cells as the page shows it, whatever it is of; each cell has the same fields, some empty."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import Tensor

from locate.lens.words import Words

Kind = Literal["text", "number", "share", "signed_share", "whole", "words", "lines"]
"""How a field is written: a share in %, a signed one with its sign; words are tokens with scores, lines texts."""

Cells = list[list[Any]]
"""A value for each cell, (row, column); None where the field has no meaning."""


@dataclass(frozen=True)
class Field:
    """What each cell has under one name, and whether it can colour them: from none to the largest, or around zero."""

    name: str
    kind: Kind
    values: Cells
    colours: bool = False


@dataclass(frozen=True)
class Grid:
    """A table of cells.

    Attributes:
        title: what it shows.
        note: what holds for all of it, in a line.
        row: what a row is ("layer").
        column: what a column is ("token").
        rows: their names.
        columns: their names.
        fields: what each cell has; the first one that can colour the cells does so at first.
        shown: the field that stands in the cells; empty for none.
        marked: rows or columns of the subject's tokens, by number, if any.
        marks: whether `marked` are rows or columns.
    """

    title: str
    note: str
    row: str
    column: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    fields: tuple[Field, ...]
    shown: str = ""
    marked: tuple[int, ...] = ()
    marks: Literal["rows", "columns"] = "columns"

    def __post_init__(self) -> None:
        for field in self.fields:
            sizes = {len(row) for row in field.values}
            if len(field.values) != len(self.rows) or sizes != {len(self.columns)}:
                raise ValueError(
                    f"the field {field.name!r} of {self.title!r} has {len(field.values)} rows of {sorted(sizes)} "
                    f"cells, not {len(self.rows)} of {len(self.columns)}"
                )

    def values(self, name: str) -> Cells:
        """The cells of the field of a name. Raises KeyError: there is no such field."""
        for field in self.fields:
            if field.name == name:
                return field.values
        raise KeyError(f"{self.title!r} has no field {name!r}; it has {', '.join(one.name for one in self.fields)}")

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def cells(tensor: Tensor) -> Cells:
    """A tensor, (row, column), as cells."""
    found: Cells = tensor.tolist()
    return found


def fill(n_rows: int, n_columns: int, value: Callable[[int, int], Any]) -> Cells:
    """Cells, each by its row and column."""
    return [[value(row, column) for column in range(n_columns)] for row in range(n_rows)]


def with_scores(words: Words) -> list[list[Any]]:
    """Tokens with their scores, as a field of the kind "words" has them."""
    return [[text, score] for text, score in zip(words.texts, words.scores, strict=True)]


def from_the_last(layers: Sequence[Any]) -> list[Any]:
    """By layer, the last one first: it stands at the top, as in pictures of the lens."""
    return list(reversed(layers))
