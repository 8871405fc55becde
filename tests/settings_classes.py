"""The project's settings classes: by hand, and as the packages have them."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import corrigenda
import editing
import eval as evaluation
import jobs.settings as settings_of_jobs
import locate
from corrigenda.knowledge.attached import Attached
from corrigenda.moments.text import Text
from corrigenda.settings import is_checked
from editing.locate_then_edit.closed_form import ClosedForm
from editing.locate_then_edit.guards import Guards
from editing.locate_then_edit.targets import ValueSettings
from editing.locate_then_edit.weighed import Weighed
from editing.memory_based.wise import settings as wise
from editing.memory_based.wise.unrelated import Unrelated
from editing.neurons.neuron_editor import NeuronEditor
from editing.neurons.scale import _ScaleNeurons
from eval.judge import Judge
from jobs.building.acceptance import AcceptSettings
from jobs.explaining.settings import ExplainSettings
from jobs.tuning.settings import TuneSettings
from locate.lens.early_exit import EarlyExitSettings
from locate.lens.jacobian import JacobianSettings
from locate.neurons.locator import Neurons

NEURONS: dict[str, Any] = {"neurons": ((0, 1),)}

CLASSES: dict[type, dict[str, Any]] = {
    Text: {},
    Attached: {},
    ValueSettings: {},
    Guards: {"editor": "x", "flag_norm": 0.5, "refuse_norm": 2.0},
    Unrelated: {},
    wise.ShardSettings: {},
    wise.CoordinateSettings: {},
    wise.RowSettings: {},
    wise.LearningSettings: {},
    wise.RoutingSettings: {},
    wise.UnrelatedSettings: {},
    wise.WiseSettings: {},
    editing.Wise: {},
    editing.Rome: {},
    editing.Memit: {},
    editing.AlphaEdit: {},
    editing.Emmet: {},
    editing.AfterTreatments: {},
    editing.Workers: {},
    editing.UltraEdit: {},
    editing.Shift: {},
    editing.Grace: {},
    editing.FineTune: {},
    editing.CrispEdit: {},
    editing.NoEdit: {},
    editing.InContext: {},
    editing.RandomUpdate: {},
    ClosedForm: {},
    Weighed: {},
    NeuronEditor: NEURONS,
    _ScaleNeurons: NEURONS,
    editing.Suppress: NEURONS,
    editing.Enhance: NEURONS,
    editing.EraseNeurons: NEURONS,
    editing.UpdateNeurons: NEURONS,
    evaluation.EvalSettings: {},
    evaluation.SequentialSettings: {},
    evaluation.AlarmSettings: {},
    evaluation.SurvivalSettings: {},
    evaluation.RealUse: {},
    Judge: {},
    locate.CausalTrace: {},
    locate.Noise: {},
    locate.AttentionKnockout: {},
    locate.BackwardLens: {},
    locate.EditLens: {},
    Neurons: {},
    EarlyExitSettings: {},
    JacobianSettings: {},
    settings_of_jobs.RunSettings: {},
    settings_of_jobs.PluginSettings: {},
    settings_of_jobs.ModelSettings: {},
    settings_of_jobs.DataSettings: {},
    settings_of_jobs.AutoLayerSettings: {},
    settings_of_jobs.LocalitySettings: {},
    settings_of_jobs.SurveySettings: {},
    settings_of_jobs.NeuronsSettings: {},
    settings_of_jobs.TraceSettings: {},
    settings_of_jobs.LensSettings: {},
    settings_of_jobs.LeaderboardSettings: {},
    settings_of_jobs.MeasureAgainSettings: {},
    settings_of_jobs.BuildSettings: {"folder": "build"},
    settings_of_jobs.FactsSettings: {"folder": "build"},
    AcceptSettings: {},
    settings_of_jobs.AskSettings: {"prompt": "x"},
    settings_of_jobs.PageSettings: {},
    ExplainSettings: {},
    TuneSettings: {},
    settings_of_jobs.ExportSettings: {"to": "x"},
}
"""Each class that is checked and can be made of plain values, with what it needs to be made.

`Saved` needs a folder with edits, and is not among them.
"""


def frozen_dataclasses() -> Iterator[type]:
    """All frozen dataclasses that the packages define."""
    for package in (corrigenda, editing, evaluation, locate, importlib.import_module("jobs")):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "lm_eval" in module.name:
                continue
            for value in vars(importlib.import_module(module.name)).values():
                own = isinstance(value, type) and value.__module__ == module.name
                if own and dataclasses.is_dataclass(value) and value.__dataclass_params__.frozen:
                    yield value


def needs_checks(cls: type) -> bool:
    """Whether a class holds settings: by its name, by what it can do, or because it says so itself."""
    does = any(callable(getattr(cls, verb, None)) for verb in ("edit", "find", "extend"))
    return is_checked(cls) or does or cls.__name__.endswith("Settings")
