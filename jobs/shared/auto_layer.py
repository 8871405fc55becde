"""``editor.layer=auto`` and ``editor.layers=auto``: the layers where tracing finds the facts of a run."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from omegaconf import DictConfig

from corrigenda import Fact, LanguageModel
from corrigenda.settings.checked import AtLeastOne, checked
from corrigenda.system.files import write_json
from corrigenda.system.plain_data import read_json
from corrigenda.system.progress import track
from jobs.shared.base import console
from jobs.shared.settings import check, instantiate
from locate import CausalTraceResult, UnknownFactError, average, suggest_layers


@dataclass(frozen=True)
@checked
class AutoLayerSettings:
    """``job.auto_layer``: ``editor.layer=auto``, ``editor.layers=auto`` take the layers where tracing finds the facts.

    Attributes:
        facts: so many that the model knows are traced, of the run's own.
        layers: so many are taken, for an editor that has ``editor.layers``; None for its ``editor.number``, and three
            where it has none.
    """

    group: ClassVar[str] = "job.auto_layer"

    facts: AtLeastOne = 3
    layers: AtLeastOne | None = None


def locate_layers(config: DictConfig, folder: Path, lm: LanguageModel, facts: Sequence[Fact]) -> None:
    """Sets the editor's ``layer``, or ``layers``, where it is "auto"; said, and kept for when the run goes on.

    Raises:
        ValueError: the model knows none of the facts, or has fewer layers than are asked for; or the editor acts at
            the relation.
    """
    for field in ("layer", "layers"):
        if config.editor.get(field) == "auto":
            if config.editor.get("position") == "relation":
                raise ValueError(
                    f"editor.{field}=auto finds layers at the subject's last token: with editor.position=relation name "
                    "a layer, or leave it out for the default"
                )
            settings = config.job.auto_layer
            number = 1 if field == "layer" else settings.layers or config.editor.get("number") or 3
            config.editor[field] = _located(field, number, settings, folder, lm, facts)


def traces_of(lm: LanguageModel, facts: Sequence[Fact], locator: Any, most: int) -> list[CausalTraceResult]:
    """The traces of the first facts that the model knows, so many at most."""
    traces: list[CausalTraceResult] = []
    for fact in track(facts, "Tracing facts to choose a layer"):
        if len(traces) < most:
            with suppress(UnknownFactError):
                traces.append(locator.find(lm, fact))
    return traces


def _located(
    field: str, number: int, settings: DictConfig, folder: Path, lm: LanguageModel, facts: Sequence[Fact]
) -> int | list[int]:
    """The layer, or the layers in ascending order, that tracing suggests."""
    path = folder / f"{field}.json"
    asked = check(AutoLayerSettings, settings)
    if not path.is_file():
        locator = replace(instantiate(settings.locator), site="ffn")
        traces = traces_of(lm, facts, locator, asked.facts)
        if not traces:
            raise ValueError(f"editor.{field}=auto: {lm.name} knows none of the {len(facts)} facts; name a layer")
        best = suggest_layers(average(traces), number)
        why = "restoring FFN windows around it at the last subject token recovers the answer most"
        found = best[0] if field == "layer" else sorted(best)
        write_json(path, {field: found, "why": why, "facts": [trace.fact.id for trace in traces]})
    chosen: dict[str, Any] = read_json(path)
    shown = str(chosen[field]).strip("[]")
    told = f"editor.{field}=auto: {field} {shown}: {chosen['why']} ({len(chosen['facts'])} facts traced)"
    console.print(told, highlight=False, soft_wrap=True)
    located: int | list[int] = chosen[field]
    return located
