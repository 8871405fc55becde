"""``editor.layer=auto`` and ``editor.layers=auto``: the layers where tracing finds the facts of a run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from corrigenda import Fact, LanguageModel
from corrigenda.files import write_json
from corrigenda.plain_data import read_json
from corrigenda.progress import track
from jobs.base import console
from jobs.settings import AutoLayerSettings, check, made
from locate import Trace, UnknownFactError, average, suggest_layers


def locate_layers(config: DictConfig, folder: Path, lm: LanguageModel, facts: Sequence[Fact]) -> None:
    """Sets the editor's ``layer``, or ``layers``, where it is "auto"; said, and kept for when the run goes on.

    Raises:
        ValueError: the model knows none of the facts, or has fewer layers than are asked for.
    """
    for field in ("layer", "layers"):
        if config.editor.get(field) == "auto":
            config.editor[field] = _located(field, config.job.auto_layer, folder, lm, facts)


def traces_of(lm: LanguageModel, facts: Sequence[Fact], locator: Any, most: int) -> list[Trace]:
    """The traces of the first facts that the model knows, so many at most."""
    traces: list[Trace] = []
    for fact in track(facts, "Tracing facts to choose a layer"):
        if len(traces) < most:
            with suppress(UnknownFactError):
                traces.append(locator.find(lm, fact))
    return traces


def _located(
    field: str, settings: DictConfig, folder: Path, lm: LanguageModel, facts: Sequence[Fact]
) -> int | list[int]:
    """The layer, or the layers in ascending order, that tracing suggests."""
    path = folder / f"{field}.json"
    asked = check(AutoLayerSettings, settings)
    if not path.is_file():
        locator = replace(made(settings.locator), site="ffn")
        traces = traces_of(lm, facts, locator, asked.facts)
        if not traces:
            raise ValueError(f"editor.{field}=auto: {lm.name} knows none of the {len(facts)} facts; name a layer")
        best = suggest_layers(average(traces), 1 if field == "layer" else asked.layers)
        why = "restoring FFN windows around it at the last subject token recovers the answer most"
        found = best[0] if field == "layer" else sorted(best)
        write_json(path, {field: found, "why": why, "facts": [trace.fact.id for trace in traces]})
    chosen: dict[str, Any] = read_json(path)
    shown = str(chosen[field]).strip("[]")
    told = f"editor.{field}=auto: {field} {shown}: {chosen['why']} ({len(chosen['facts'])} facts traced)"
    console.print(told, highlight=False, soft_wrap=True)
    located: int | list[int] = chosen[field]
    return located
