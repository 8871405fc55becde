"""A relation as an affine map from a subject's state to the state that says the object.

Hernandez et al. 2024, "Linearity of Relation Decoding in Transformer Language Models", section 3. Of a sample i, asked
with the other samples as examples before it, s_i is what enters a layer at the subject's last token and o_i the state
after the last layer where the object's first token is predicted:

    o = beta W s + b,   W = mean_i J_i,   b = mean_i (o_i - J_i s_i),   J_i = d o_i / d s_i

What is written into s so that o becomes o' is W_r^+ (o' - o), by the pseudo-inverse of W's r leading directions.
"""

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from corrigenda.facts import Fact
from corrigenda.forward.interventions import Add, Read, intervene
from corrigenda.forward.jacobians import last_state_jacobians
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import Recording
from corrigenda.forward.shared import record_shared
from corrigenda.language_model import LanguageModel
from corrigenda.models.sites import Site
from corrigenda.prompts import encode, encode_target, filled_span, first_word
from corrigenda.system.progress import track
from corrigenda.text.joints import joined

ROWS = 64
"""Changed subjects that run at once."""


@dataclass(frozen=True, eq=False)
class SampleStates:
    """Samples of a relation, each asked behind its examples, and what was seen there.

    Attributes:
        facts: the samples.
        objects: (sample,), the first token of each one's true object.
        subjects: (sample,), the position of the subject's last token.
        layers: which layers were looked at.
        s: what entered these there, (sample, layer, d_model), in float32 where the model has less.
        o: the state after the last layer at the last token, (sample, d_model), likewise.
        recording: of the samples, from which forwards with another s start.
    """

    facts: tuple[Fact, ...]
    objects: Tensor
    subjects: Tensor
    layers: tuple[int, ...]
    s: Tensor
    o: Tensor
    recording: Recording

    def at(self, layer: int) -> Tensor:
        """What entered a layer, (sample, d_model)."""
        return self.s[:, self.layers.index(layer)]


@torch.no_grad()
def read_samples(
    lm: LanguageModel,
    facts: Sequence[Fact],
    examples: Sequence[Sequence[Fact]],
    layers: Sequence[int],
    keep: Collection[int],
) -> SampleStates:
    """Asks for the objects of samples, and reads the subjects' states in some layers and the last ones.

    Before each sample stand its `examples` with their true objects, a line each; at the layers `keep` forwards with
    other subjects' states will start. Raises ContextLengthError: a sample with its examples is longer than the model
    reads; ValueError: a subject has no token.
    """
    asked = [_asked(lm, fact, before) for fact, before in zip(facts, examples, strict=True)]
    precise = torch.promote_types(lm.dtype, torch.float32)  # sums and inverses of half precision would say little
    batch = lm.batch([ids for ids, _, _ in asked])
    device = batch.lengths.device
    subjects = torch.tensor([position for _, position, _ in asked], device=device)
    forward = record_shared(lm, batch, keep, subjects)
    with ExitStack() as stack:
        at = forward.local(subjects)
        seen = [stack.enter_context(intervene(lm, Site("residual_before", layer), Read(), at)) for layer in layers]
        last = stack.enter_context(
            intervene(lm, Site("block", lm.n_layers - 1), Read(), forward.local(batch.lengths - 1))
        )
        recording = forward.record(keep)
    return SampleStates(
        facts=tuple(facts),
        objects=torch.tensor([first for _, _, first in asked], device=device),
        subjects=subjects,
        layers=tuple(layers),
        s=torch.stack([each.value for each in seen], 1).to(precise),
        o=last.value.to(precise),
        recording=recording,
    )


def _asked(lm: LanguageModel, fact: Fact, examples: Sequence[Fact]) -> tuple[list[int], int, int]:
    """The tokens up to where the object's first word is predicted, the subject's last position, and the next token.

    A space that is a token of its own, which some tokenizers put before every number, belongs to what is asked.
    """
    before = "".join(f"{joined(each.statement, str(each.target_true), each.joint)}\n" for each in examples)
    prompt = lm.reads(before + fact.statement)
    ids = encode(lm.tokenizer, prompt)
    span = filled_span(lm.tokenizer, prompt, fact.prompt, fact.subject)
    target = encode_target(lm.tokenizer, prompt, str(fact.target_true), fact.joint)
    spaces = first_word(lm.tokenizer, target)
    return [*ids, *target[:spaces]], span[1] - 1, target[spaces]


@dataclass(frozen=True, eq=False)
class AffineMaps:
    """The map of a relation at each of some layers, and what its parts give where a sample is held out.

    Attributes:
        layers: which.
        weights: W, (layer, d_model, d_model).
        biases: b, (layer, d_model).
        held_out: for each sample W s with W of the other samples, (sample, layer, d_model).
        held_out_biases: for each sample b of the others, (sample, layer, d_model).
    """

    layers: tuple[int, ...]
    weights: Tensor
    biases: Tensor
    held_out: Tensor
    held_out_biases: Tensor

    def at(self, layer: int) -> tuple[Tensor, Tensor]:
        """W and b at a layer."""
        place = self.layers.index(layer)
        return self.weights[place], self.biases[place]


def affine_maps(lm: LanguageModel, samples: SampleStates) -> AffineMaps:
    """W and b at each layer that samples were looked at; one sample's Jacobians are there at a time.

    The recording has to have kept the lowest of these layers.
    """
    n = len(samples.facts)
    total: Tensor | float = 0.0
    products = torch.empty(n, *samples.s.shape, dtype=samples.s.dtype, device=samples.s.device)  # J_i s_k, (i, k, ...)
    for i in track(range(n), "Jacobians of a relation"):
        found = last_state_jacobians(lm, samples.recording, i, int(samples.subjects[i]), samples.layers).to(samples.s)
        products[i] = torch.einsum("lij,klj->kli", found, samples.s)
        total = total + found
    assert isinstance(total, Tensor)
    own = torch.arange(n, device=products.device)
    biases = samples.o[:, None] - products[own, own]
    others = max(1, n - 1)
    return AffineMaps(
        layers=samples.layers,
        weights=total / n,
        biases=biases.mean(0),
        held_out=(products.sum(0) - products[own, own]) / others,
        held_out_biases=(biases.sum(0) - biases) / others,
    )


def low_rank_inverses(weight: Tensor, ranks: Sequence[int]) -> list[Tensor]:
    """W_r^+ = V_r S_r^-1 U_r^T, (d_model, d_model), for each rank r: of the r largest singular values above 0."""
    u, singular, vh = torch.linalg.svd(weight)
    most = int((singular > singular[0] * torch.finfo(weight.dtype).eps * len(singular)).sum())
    return [vh[:r].T @ (u[:, :r] / singular[:r]).T for r in (min(rank, most) for rank in ranks)]


@torch.no_grad()
def changed_logits(lm: LanguageModel, samples: SampleStates, layer: int, rows: Tensor, deltas: Tensor) -> Tensor:
    """What the model says, (n, vocabulary), where `deltas`, (n, d_model), join what enters a layer at the subject.

    `rows`, (n,), says of which samples, whose recording has to have kept the layer. Only layers from this one on, and
    positions from the subject's last on, run.
    """
    found = []
    for some, delta in zip(rows.split(ROWS), deltas.split(ROWS), strict=True):
        start = samples.subjects[some]
        forward = PartialForward(lm, samples.recording, layer, start, some)
        last = forward.local(samples.recording.batch.lengths[some] - 1)
        with intervene(lm, Site("residual_before", layer), Add(delta), forward.local(start)):
            found.append(forward.logits(last))
    return torch.cat(found)
