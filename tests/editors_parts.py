"""What the tests of every editor share: each name that `editor=` takes, with settings for tiny models; facts; bits."""

import dataclasses
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import tiny
import torch
import wise_parts
from composed import composed
from hydra.utils import instantiate
from torch import Tensor

from corrigenda import Fact, LanguageModel
from corrigenda.forward.recording import forward_logits
from corrigenda.moments.text import Text
from editing import EDITORS

LAYER = 1
TOWER = Fact("the Eiffel tower", "{} is located in the city of", "Rome", "Paris", id="tower")
TONGUE = Fact("Danielle Darrieux", "the mother tongue of {} is", "English", "French", id="tongue")
PLAYS = Fact("Big Ben", "in the city with {} on the river Thomas plays the", "guitar", "piano", id="plays")
FACTS = [TOWER, TONGUE, PLAYS]

VALUE: dict[str, Any] = {"steps": 3, "lr": 0.2}
TEXT = Text(tokens=512, length=8)
AT_SUBJECT: dict[str, Any] = {"prefix_lengths": ((3, 2),), "value": VALUE, "text": TEXT, "refuse_norm": 1e9}
CLOSED: dict[str, Any] = AT_SUBJECT | {"layers": (1, 2), "most_per_coefficient": 1.0, "alike": 1.0}
TUNED: dict[str, Any] = {"layer": LAYER, "steps": 3, "epochs": 2, "batch_size": 1}
DEMONSTRATIONS = str(Path(__file__).parent / "data_files" / "demonstrations.jsonl")
RELATIONS = str(Path(__file__).parent / "data_files" / "relations")
DICTIONARY = str(Path(__file__).parent / "data_files" / "dictionary" / "layers.1.mlp")
SHORT = "{fact} {prompt}"
ADAPTED: dict[str, Any] = {"layers": (1, 2), "steps": 3, "epochs": 2, "batch_size": 1}
NEURONS: dict[str, Any] = {"find": None, "neurons": ((LAYER, 3), (2, 5))}
SMALL: dict[str, dict[str, Any]] = {
    "adalora": ADAPTED | {"rank": 2, "first_rank": 3},
    "alphaedit": CLOSED | {"energy": 0.3},
    "crispedit": TUNED | {"gamma": 0.1, "text": TEXT},
    "emmet": CLOSED | {"layers": (LAYER,)},
    "enhance": NEURONS,
    "erase_neurons": NEURONS,
    "feature": {"dictionary": DICTIONARY, "strength": 4.0},
    "finetune": TUNED,
    "grace": {"layer": LAYER, "radius": 1.0, "steps": 3},
    "horen": {"layer": LAYER, "steps": 3, "threshold": 0.999},
    "ike": {"demonstrations": {"path": DEMONSTRATIONS}, "copies": 0, "updates": 1, "retained": 0, "form": SHORT},
    "in_context": {},
    "lora": ADAPTED,
    "lre": {"layer": LAYER, "samples": RELATIONS, "jacobians": 2, "rank": 8},
    "melo": {"layer": LAYER, "radius": 1.0, "steps": 3},
    "memit": CLOSED,
    "malmen": {"layers": (1, 2), "untrained": True, "refuse_norm": 1e9},
    "mend": {"layers": (1, 2), "untrained": True, "refuse_norm": 1e9},
    "memoir": {"layer": LAYER, "steps": 3, "prefix_lengths": ((3, 2),), "text": TEXT, "background": TEXT},
    "none": {},
    "retrieval": {},
    "rome": AT_SUBJECT | {"layer": LAYER, "flag_norm": 1e9},
    "scoped": {"layer": 2, "prefix_lengths": ((3, 2),), "value": VALUE, "text": TEXT},
    "serac": {"layers": (1, 2), "untrained": True},
    "shift": {"layer": LAYER},
    "suit": CLOSED,
    "suppress": NEURONS,
    "t_patcher": {"layer": LAYER, "steps": 3, "text": TEXT},
    "ultraedit": {"layers": (1, 2), "most_per_coefficient": 1.0, "refuse_norm": 1e9},
    "update_neurons": NEURONS,
    "wise_whitened": wise_parts.SMALL
    | {"layer": LAYER, "steps": 3, "unrelated_batch": 4, "other_subjects": 1, "hard_negatives": 2, "text": TEXT},
}
"""Of each editor what is smaller, or fits random weights, in place of its defaults; presets take their editor's."""
NAMES = [name for name in EDITORS if name != "saved"]
"""Every name but `saved`, which makes no edit of its own."""


@cache
def editor(name: str) -> Any:
    """The editor or preset of a name as it is shipped, but for what is small."""
    if name == "random":
        return dataclasses.replace(shipped(name), like=editor("rome"))
    return changed(shipped(name), SMALL[EDITORS.base(name)])


@cache
def configured(name: str) -> Any:
    """What the command line makes of ``editor=NAME``, not to be changed: composing it takes long."""
    return composed(f"editor={name}", "seed=0").editor


@cache
def shipped(name: str) -> Any:
    return instantiate(configured(name), _convert_="all")


def changed(settings: Any, values: Mapping[str, Any]) -> Any:
    """A dataclass with other values, in the dataclasses inside it too."""
    nested = {
        name: changed(getattr(settings, name), value) if isinstance(value, Mapping) else value
        for name, value in values.items()
    }
    return dataclasses.replace(settings, **nested)


def bits(lm: LanguageModel) -> dict[str, Tensor]:
    """A copy of all weights."""
    return {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}


def same_bits(lm: LanguageModel, before: Mapping[str, Tensor]) -> bool:
    """Whether the weights are what they were; a NaN equals itself."""
    integers = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
    now = lm.model.state_dict()
    return now.keys() == before.keys() and all(
        torch.equal(tensor.view(integers[tensor.element_size()]), now[name].view(integers[tensor.element_size()]))
        for name, tensor in before.items()
    )


def said(lm: LanguageModel, facts: list[Fact] = FACTS) -> Tensor:
    """Logits of the next tokens after the facts' prompts, (fact, vocabulary)."""
    batch = lm.batch([lm.tokens(fact.statement) for fact in facts])
    return forward_logits(lm, batch, batch.lengths - 1).detach()


def confident() -> LanguageModel:
    """A tiny model whose unembedding is large enough for probabilities near one."""
    lm = tiny.llama()
    lm.architecture.head.weight.data.mul_(10)
    return lm
