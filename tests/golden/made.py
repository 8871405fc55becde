"""What golden values are taken of: tiny seeded models, facts with prompts of every kind, and the shipped settings."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import tiny
from composed import composed
from hydra.utils import instantiate
from omegaconf import OmegaConf

from corrigenda import Edit, Fact, LanguageModel
from corrigenda.facts import Probe
from corrigenda.forward.recording import forward_logits
from eval import EvalSettings, RealUse

REDUCED: dict[str, Any] = {"steps": 6, "epochs": 4, "tokens": 512, "length": 16, "tokens_per_coefficient": 2}
REDUCED |= {"prefix_lengths": [[4, 3]]}
"""What of the shipped settings is less here, wherever it stands."""
CHAT = "{% for one in messages %}{{ one.role }} : {{ one.content }} . {% endfor %}"

FACTS = (
    Fact(
        *("the Eiffel tower", "{} is located in the city of", "Rome", "Paris"),
        id="tower",
        paraphrases=("the city with the Eiffel tower is", "the Eiffel tower stands in"),
        neighbourhood=("the river is located in the city of", "the tower in the north stands in"),
        locality=(Probe("Big Ben is located in", "London"),),
        portability=(Probe("the Eiffel tower is in the country", "Italy"),),
        generation=("the Eiffel tower",),
    ),
    Fact(
        *("Danielle Darrieux", "the mother tongue of {} is", "the English language", "French"),
        id="tongue",
        paraphrases=("Danielle Darrieux speaks",),
        neighbourhood=("the mother tongue of Thomas is",),
    ),
    Fact("Big Ben", "in the city with {} on the river Thomas plays the", "guitar", "piano", id="plays"),
    Fact(
        "Thomas", "the native language of {} is", "Dutch", "German", id="native", locality=(Probe("one two", "three"),)
    ),
)
PROMPTS = (
    "the Eiffel tower is located in the city of",
    "Danielle Darrieux speaks",
    "one two three",
    "Thomas plays the",
)
FULL = EvalSettings(
    max_new_tokens=6,
    preservation_tokens=4,
    fluency_tokens=12,
    perplexity_windows=3,
    perplexity_window=16,
    side_effects=True,
    real_use=RealUse(max_new_tokens=5),
)
SCORES = EvalSettings(generate=False, perplexity_windows=3, perplexity_window=16)


def model(family: str = "llama") -> LanguageModel:
    settings = (tiny.CONFIGS | tiny.MIXTURES)[family]
    [room] = {"n_positions", "max_position_embeddings"} & {*settings}
    with patch.dict(settings, {room: 160}):  # questions in real use are long
        lm = tiny.build(family, scale=6.0)  # small values would make every edit an outlier
    lm.tokenizer.chat_template = CHAT
    return lm


def configured(commands: Sequence[Sequence[str]]) -> list[Any]:
    """The configurations of commands, with everything that refers to something else resolved."""
    return [OmegaConf.to_container(composed(*command), resolve=True) for command in commands]


def reduced(config: Any) -> Any:
    if not isinstance(config, dict):
        return config
    less = {name for name, part in config.items() if name in REDUCED and (part or part is None)}
    return {name: REDUCED[name] if name in less else reduced(part) for name, part in config.items()}


@cache
def settings_of(name: str) -> Any:
    return reduced(configured([[f"editor={name}"]])[0]["editor"])


def editor(name: str, **own: Any) -> Any:
    """An editor as it is shipped, but for what is reduced."""
    return instantiate(settings_of(name) | own, _convert_="all")


def answers(lm: LanguageModel) -> Any:
    """What the model says now: log-probabilities of next tokens after some prompts."""
    batch = lm.batch([lm.tokens(prompt) for prompt in PROMPTS])
    found = forward_logits(lm, batch, batch.lengths - 1).log_softmax(-1)
    return {"most likely": found.argmax(-1).tolist(), "log p": found}


def effect(lm: LanguageModel, edit: Edit, folder: Path) -> dict[str, Any]:
    """What an edit does, whatever it consists of: to weights and answers; and after it went to the disk and back."""
    before = {name: weight.detach().clone() for name, weight in lm.model.state_dict().items()}
    unedited = answers(lm)["log p"]
    with edit.applied(lm):
        changed = {name: weight - before[name] for name, weight in lm.model.state_dict().items()}
        found = {
            "weights": {name: delta for name, delta in changed.items() if bool(delta.any())},
            "answers": answers(lm),
        }
    edit.save(folder)
    loaded = Edit.load(folder)
    with loaded.applied(lm):
        again = answers(lm)["log p"]
    same = bool((again == found["answers"]["log p"]).all())
    back = all(bool((weight == before[name]).all()) for name, weight in lm.model.state_dict().items())
    moved = float((found["answers"]["log p"] - unedited).abs().max())
    return found | {
        "kind": edit.kind,
        "in_weights": edit.in_weights,
        "touched": [str(place) for place in edit.touched],
        "report": list(edit.origin.report),
        "described": edit.describe(),
        "most that an answer moved": moved,
        "the same from the disk": same,
        "reverted to the bit": back,
    }
