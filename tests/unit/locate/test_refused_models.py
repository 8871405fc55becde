from collections.abc import Callable

import pytest
import tiny
import torch

from corrigenda import Fact, LanguageModel
from corrigenda.errors import UnsupportedModelError
from corrigenda.moments.text import Text
from editing import Shift
from editing.neurons.steer import steer
from locate import (
    attention_knockout,
    backward_lens,
    causal_trace,
    jacobian_lens,
    logit_attribution,
    logit_lens,
    read_values,
    sub_updates,
)
from locate.flow.attributes import attribute_flow
from locate.flow.function import decode_early, transplant
from locate.lens.aggregation import aggregation
from locate.lens.agreement import agreement
from locate.lens.early_exit import EarlyExitSettings, early_exit
from locate.lens.jacobian import JacobianSettings
from locate.lens.promoters import promoters
from locate.lens.saturation import saturation_events
from locate.lens.triggers import trigger_examples

TEXT = Text(tokens=40, length=10)
PROMPT = "the tower of Paris is located in"
FACT = Fact("Danielle Darrieux", "the mother tongue of {} is the", "English")
MASKED, TWO_TEXTS, MIXTURE = ["bert"], ["t5"], list(tiny.MIXTURES)
CALLS: dict[str, tuple[Callable[[LanguageModel], object], list[str]]] = {
    "values": (read_values, MASKED + MIXTURE),
    "triggers": (lambda lm: trigger_examples(lm, TEXT, 3), MASKED + TWO_TEXTS + MIXTURE),
    "agreement": (lambda lm: agreement(lm, trigger_examples(tiny.llama(), TEXT, 3)), MASKED),
    "aggregation": (lambda lm: aggregation(lm, TEXT, 2), MASKED + MIXTURE),
    "saturation": (lambda lm: saturation_events(lm, TEXT), MASKED),
    "sub-updates": (lambda lm: sub_updates(lm, PROMPT), MASKED + MIXTURE),
    "early exit": (lambda lm: early_exit(lm, EarlyExitSettings(text=TEXT)), MASKED + MIXTURE),
    "logit lens": (lambda lm: logit_lens(lm, PROMPT), MASKED),
    "early decoding": (lambda lm: decode_early(lm, PROMPT, {"answer": "Paris"}), MASKED),
    "transplant": (lambda lm: transplant(lm, PROMPT, PROMPT, "Paris"), MASKED),
    "jacobian lens": (lambda lm: jacobian_lens(lm, JacobianSettings(TEXT, 2)), MASKED),
    "attribution": (lambda lm: logit_attribution(lm, PROMPT), MASKED + TWO_TEXTS + MIXTURE),
    "promoting": (lambda lm: promoters(lm, ["piano"]), MIXTURE),
    "backward lens": (lambda lm: backward_lens(lm, FACT), MASKED + TWO_TEXTS + MIXTURE),
    "trace": (lambda lm: causal_trace(lm, FACT, answer="top"), TWO_TEXTS),
    "knockout": (lambda lm: attention_knockout(lm, FACT, answer="top"), TWO_TEXTS),
    "attributes": (lambda lm: attribute_flow(lm, FACT, answer="top"), TWO_TEXTS),
    "shift": (lambda lm: Shift(layer=2).edit(lm, [FACT]), MIXTURE),
    "steer": (lambda lm: steer(lm, {(2, 3): 1.0}, 1.0), MIXTURE),
}
"""What is asked of a model, and the families in which it cannot be."""


@pytest.mark.parametrize("family", MASKED + TWO_TEXTS + MIXTURE)
def test_they_are_refused_in_a_line(family: str) -> None:
    lm = tiny.build(family)
    said = "encoder" if family not in MIXTURE else r"^layer \d is a mixture of 4 experts"
    for name, (call, families) in CALLS.items():
        if family in families:
            with pytest.raises(UnsupportedModelError, match=said) as raised:
                call(lm)
            assert "\n" not in str(raised.value), name


@pytest.mark.parametrize(
    "call",
    [
        lambda lm: logit_lens(lm, PROMPT, "Paris"),
        lambda lm: decode_early(lm, PROMPT, {"answer": "Paris"}),
        lambda lm: transplant(lm, PROMPT, PROMPT, "Paris"),
        lambda lm: sub_updates(lm, PROMPT),
        lambda lm: logit_attribution(lm, PROMPT),
    ],
    ids=["logit lens", "early decoding", "transplant", "sub-updates", "attribution"],
)
def test_a_model_that_gives_no_numbers_is_not_read(call: Callable[[LanguageModel], object]) -> None:
    """Of NaN no score is higher than a token's own, so that every token would rank as the top one."""
    lm = tiny.llama()
    with torch.no_grad():
        lm.memory(1).values[3, 4] = float("nan")
    with pytest.raises(ValueError, match="gives no numbers"):
        call(lm)
