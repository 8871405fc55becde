"""Facts of one relation together: grouped by what facts say of themselves, or read from files of samples.

Such a file (Hernandez et al. 2024) is a JSON object: `name`, `prompt_templates` with a ``{}`` each for the subject, and
`samples`, objects with `subject` and `object`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corrigenda.data.factset import FactSet
from corrigenda.errors import FactError, RecordError
from corrigenda.facts import Fact
from corrigenda.system.files import expanded
from corrigenda.system.plain_data import read_json
from corrigenda.text.names import did_you_mean


@dataclass(frozen=True)
class RelationFacts:
    """The samples of one relation by its name, one a subject, in the order of the source; each has a true object."""

    name: str
    facts: tuple[Fact, ...]

    @property
    def id(self) -> str:
        """The relation's name."""
        return self.name

    @property
    def statement(self) -> str:
        """How it is asked: the first sample's prompt, open."""
        return self.facts[0].prompt


def group_by_relation(facts: Iterable[Fact], names: Sequence[str] = ()) -> tuple[RelationFacts, ...]:
    """Facts by the relation that they name, in the order of `names` or as they come; of each subject the first fact.

    Facts that name no relation or no true object are left out. Raises ValueError: there is no relation of such a name,
    or none at all.
    """
    groups: dict[str, dict[str, Fact]] = {}
    for fact in facts:
        if fact.relation is not None and fact.target_true is not None:
            groups.setdefault(fact.relation, {}).setdefault(fact.subject.casefold(), fact)
    if not groups:
        raise ValueError("no fact names its relation and its true object, and so there is no relation; take other data")
    for name in names:
        if name not in groups:
            near = did_you_mean(name, list(groups))
            raise ValueError(f"there is no relation {name!r}; {near or 'there are ' + ', '.join(groups)}")
    return tuple(RelationFacts(name, tuple(groups[name].values())) for name in names or groups)


def read_relations(path: str | Path, template: int = 0) -> FactSet:
    """The samples of relations as facts, which name their relation and true object and have no new one.

    They are in a file of one relation, or in a folder of such files (``*.json``, by name). The prompt of the number
    `template` asks; where a relation has fewer, its last. Raises FileNotFoundError: there is no such file; RecordError:
    a sample, or the relation, cannot be used; with the file, the sample's number and the field.
    """
    place = Path(expanded(path))
    files = sorted(place.glob("*.json")) if place.is_dir() else [place]
    if not files or not files[0].is_file():
        raise FileNotFoundError(f"{path}: there is no file of a relation (.json); name one, or a folder of them")
    return FactSet(place.stem, tuple(fact for file in files for fact in _samples(file, template)))


def _samples(file: Path, template: int) -> list[Fact]:
    try:
        record: Any = read_json(file)
    except ValueError as error:
        raise RecordError(str(file), 1, "", f"cannot be read ({error})") from None
    for field, kind in (("name", str), ("prompt_templates", list), ("samples", list)):
        if not isinstance(record, Mapping) or not isinstance(record.get(field), kind) or not record[field]:
            raise RecordError(str(file), 1, field, "is missing or empty; a relation has a name, prompts and samples")
    prompts, found = record["prompt_templates"], []
    for number, sample in enumerate(record["samples"], 1):
        if not isinstance(sample, Mapping) or not {"subject", "object"} <= set(sample):
            raise RecordError(str(file), number, "samples", "needs 'subject' and 'object'")
        try:
            found.append(
                Fact(
                    sample["subject"],
                    prompts[min(template, len(prompts) - 1)],
                    target_new=None,
                    target_true=sample["object"],
                    id=f"{file.stem}/{number}",
                    relation=record["name"],
                )
            )
        except FactError as error:
            raise RecordError(str(file), number, error.field, error.problem) from None
    return found
