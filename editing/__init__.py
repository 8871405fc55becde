"""Editors: one file each, a frozen dataclass of hyper-parameters with `edit(lm, facts) -> Edit`."""

from editing.baselines.controls import InContext, NoEdit, RandomUpdate
from editing.baselines.finetune import FineTune
from editing.baselines.saved import Saved
from editing.editor import Editor, EditRefusedError, prepare
from editing.locate_then_edit.rome import Rome
from editing.locate_then_edit.targets import ValueSettings
from editing.memory_based.grace import Grace
from editing.memory_based.wise.unrelated import Unrelated
from editing.memory_based.wise.wise import Wise
from editing.neurons.erase import EraseNeurons, erase_relation
from editing.neurons.scale import Enhance, Suppress
from editing.neurons.update import UpdateNeurons

EDITORS: dict[str, type[Editor]] = {
    "enhance": Enhance,
    "erase_neurons": EraseNeurons,
    "finetune": FineTune,
    "grace": Grace,
    "in_context": InContext,
    "none": NoEdit,
    "random": RandomUpdate,
    "rome": Rome,
    "saved": Saved,
    "suppress": Suppress,
    "update_neurons": UpdateNeurons,
    "wise": Wise,
}
"""Editors by the name that `editor=` takes on the command line."""

__all__ = [
    "EDITORS",
    "EditRefusedError",
    "Editor",
    "Enhance",
    "EraseNeurons",
    "FineTune",
    "Grace",
    "InContext",
    "NoEdit",
    "RandomUpdate",
    "Rome",
    "Saved",
    "Suppress",
    "Unrelated",
    "UpdateNeurons",
    "ValueSettings",
    "Wise",
    "erase_relation",
    "prepare",
]
