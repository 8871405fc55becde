"""Editors: one file each, a frozen dataclass of hyper-parameters with `edit(lm, facts) -> Edit`."""

from editing.controls import InContext, NoEdit, RandomUpdate
from editing.editor import Editor, EditRefusedError, prepare
from editing.finetune import FineTune
from editing.grace import Grace
from editing.neurons import Enhance, EraseNeurons, Suppress, UpdateNeurons, erase_relation
from editing.rome import Rome
from editing.saved import Saved
from editing.target_value import ValueSettings
from editing.unrelated import Unrelated
from editing.wise import Wise

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
