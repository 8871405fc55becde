"""The run of the prompts that an update is computed on.

Keys and target values are taken from it, each without knowing of the other (`keys`, `targets`).
"""

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.interventions import Read, intervene
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import Recording, routes_of
from corrigenda.forward.shared import Beginnings, record_shared
from corrigenda.models import positions
from corrigenda.models.sites import Site
from editing.locate_then_edit.prompts import Prompts


@dataclass(frozen=True)
class PromptRun:
    """The prompts of several facts, run once.

    Attributes:
        prompts: the rows.
        recording: where partial forwards start from, at the subject's last token or later: its cache may end there. It
            has what enters each layer that was asked for and the next.
        coefficients: by layer, m at the subject's last token, (row, d_ffn).
        outputs: by layer, the FFN's output there, (row, d_model).
        attention: by layer, the attention's output there, (row, d_model), of the layers where it was asked for.
    """

    prompts: Prompts
    recording: Recording
    coefficients: Mapping[int, Tensor]
    outputs: Mapping[int, Tensor]
    attention: Mapping[int, Tensor] = field(default_factory=dict)

    def keys(self, layer: int) -> Tensor:
        """The coefficients of one layer, (row, d_ffn). Raises ValueError: the prompts were not run for this layer."""
        self._require(layer)
        return self.coefficients[layer]

    def ffn_outputs(self, layer: int) -> Tensor:
        """The FFN's output of one layer, (row, d_model). Raises ValueError: the prompts were not run for this layer."""
        self._require(layer)
        return self.outputs[layer]

    def attention_outputs(self, layer: int) -> Tensor:
        """The attention's output of one layer, as it joins the residual stream, (row, d_model).

        Raises:
            ValueError: the prompts were not run for this layer's attention.
        """
        if layer not in self.attention:
            raise ValueError(f"the prompts were not run for the attention's output of layer {layer}")
        return self.attention[layer]

    def block_outputs(self, layer: int) -> Tensor:
        """The residual stream after one layer at the subject's last token, (row, d_model).

        Raises:
            ValueError: the prompts were not run for this layer; or it is the last, whose output enters no other.
        """
        self._require(layer)
        if layer + 1 not in self.recording.states:
            raise ValueError(f"layer {layer} is the last: nothing later reads its output at the subject's last token")
        return positions.take(self.recording.states[layer + 1], self.prompts.subject).float()

    def _require(self, layer: int) -> None:
        if layer not in self.coefficients:
            known = ", ".join(map(str, sorted(self.coefficients)))
            raise ValueError(f"the prompts were run for these layers: {known}; not for layer {layer}")


@torch.no_grad()
def run_prompts(
    lm: LanguageModel, prompts: Prompts, layers: Collection[int], attention: Collection[int] = ()
) -> PromptRun:
    """Runs the rows once, as far as an update needs it, and what they begin with in common once for all.

    What comes before the subject's last token is run through the whole model, since later partial forwards attend to
    it; what comes after runs up to the layers whose keys and target values (or attention's outputs) are wanted, since
    those forwards run it again from there.
    """
    entered = sorted({number for layer in layers for number in (layer, layer + 1) if number < lm.n_layers})
    earlier = _before_subjects(lm, prompts, entered)
    if earlier is None:
        forward = record_shared(lm, prompts.batch, entered, limit=prompts.subject)
    else:
        forward = PartialForward(lm, earlier, 0, prompts.subject, batch=prompts.batch, routes=routes_of(prompts.batch))
    with ExitStack() as stack:
        at = forward.local(prompts.subject)
        seen = {layer: stack.enter_context(lm.memory(layer).capture_key(at)) for layer in layers}
        attending = {n: stack.enter_context(intervene(lm, Site("attention", n), Read(), at)) for n in attention}
        recording = forward.record(entered, until=None if earlier is None else entered[-1])
    if earlier is not None:
        recording = replace(recording, cache=earlier.cache)
    return PromptRun(
        prompts,
        recording,
        {layer: one.coefficients.float() for layer, one in seen.items()},
        {layer: one.output.float() for layer, one in seen.items()},
        {layer: one.value.float() for layer, one in attending.items()},
    )


def _before_subjects(lm: LanguageModel, prompts: Prompts, entered: Collection[int]) -> Recording | None:
    """What comes before each row's subject's last token, run through the whole model; None where that cannot be."""
    if not Beginnings.useful(lm):
        return None
    ends = prompts.subject.clamp(min=1).tolist()  # a row needs a token; from one that is no beginning nothing starts
    batch = lm.batch([ids[:end].tolist() for ids, end in zip(prompts.batch.input_ids, ends, strict=True)])
    recording = record_shared(lm, batch, entered).record(entered)
    return None if recording.cache is None else recording
