from collections.abc import Callable
from pathlib import Path

import pytest
import tiny

from corrigenda import Fact, LanguageModel
from corrigenda.errors import UnsupportedModelError
from corrigenda.moments.text import Text
from editing import Shift
from editing.neurons.steer import steer
from locate import backward_lens, logit_attribution, read_values, sub_updates
from locate.lens.aggregation import aggregation
from locate.lens.early_exit import EarlyExitSettings, early_exit
from locate.lens.promoters import promoters
from locate.lens.triggers import trigger_examples

TEXT = Text(tokens=40, length=10)
PROMPT = "the tower of Paris is located in"
FACT = Fact("Danielle Darrieux", "the mother tongue of {} is the", "English")

CALLS: dict[str, Callable[[LanguageModel], object]] = {
    "values": read_values,
    "triggers": lambda lm: trigger_examples(lm, TEXT, 3),
    "aggregation": lambda lm: aggregation(lm, TEXT, 2),
    "sub-updates": lambda lm: sub_updates(lm, PROMPT),
    "early exit": lambda lm: early_exit(lm, EarlyExitSettings(text=TEXT)),
    "attribution": lambda lm: logit_attribution(lm, PROMPT),
    "promoting": lambda lm: promoters(lm, ["piano"]),
    "backward lens": lambda lm: backward_lens(lm, FACT),
    "shift": lambda lm: Shift(layer=2).edit(lm, [FACT]),
    "steer": lambda lm: steer(lm, {(2, 3): 1.0}, 1.0),
}


@pytest.mark.parametrize("family", tiny.MIXTURES)
def test_they_are_refused(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path))
    lm = tiny.build(family)
    for name, call in CALLS.items():
        with pytest.raises(UnsupportedModelError, match=r"^layer \d is a mixture of 4 experts") as raised:
            call(lm)
        assert "\n" not in str(raised.value), name
