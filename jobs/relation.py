"""``job=relation``: the affine maps of relations, and what they come to together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from omegaconf import DictConfig

from corrigenda.data import FactSet
from corrigenda.data.relation_facts import group_by_relation, read_relations
from corrigenda.settings.checked import Count, checked
from jobs import survey
from jobs.shared.data import read_data
from jobs.shared.registry import register
from jobs.shared.settings import check
from locate.flow.relation import RelationDecoding
from locate.flow.relation_results import RelationSurvey


@dataclass(frozen=True)
@checked
class RelationSettings(survey.SurveySettings):
    """``job=relation``.

    Attributes:
        samples: a file of one relation's samples, or a folder of such files (docs/locating.md); None: the facts of the
            data, by the relation that they name.
        template: which of a file's prompts asks; where a relation has fewer, its last.
        relations: the names of those that are wanted; none: all.
    """

    samples: str | None = None
    template: Count = 0
    relations: tuple[str, ...] = ()


@register(
    "relation",
    RelationSettings,
    aim="relations as affine maps from subject to object: how faithful they are (Hernandez et al. 2024)",
    parts={"_target_": "jobs.relation.Job", "locator": RelationDecoding()},
    begins={"data": "relations"},
)
class Job(survey.Job):
    """Makes and measures a map of each relation: a result and a picture each, and the means over relations."""

    settings: ClassVar[type[survey.LocateSettings]] = RelationSettings
    what: ClassVar[str] = "relation"

    def facts(self, config: DictConfig) -> tuple[Sequence[Any], str]:
        """The relations, each with its samples."""
        asked = check(RelationSettings, config.job)
        read = read_data(config.data) if asked.samples is None else read_relations(asked.samples, asked.template)
        found = group_by_relation(read, asked.relations)
        return found, FactSet(read.name, tuple(fact for relation in found for fact in relation.facts)).fingerprint

    def mean(self, results: Sequence[Any]) -> Any:
        """The means over relations, and whether faithfulness goes with the model's accuracy."""
        return RelationSurvey.of(results)
