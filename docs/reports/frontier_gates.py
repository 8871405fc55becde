"""How like their facts' questions probes are: the scores of the gates that docs/frontier.md compares.

Each gate is a cosine of what a model makes of a probe and of its fact's prompt. A prompt that does not name the
subject in its words is kept out by every gate, and is not scored.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from corrigenda import Fact, LanguageModel
from corrigenda.edits.gate import Gate
from corrigenda.forward.recording import forward_to
from corrigenda.prompts import subject_span
from editing import Memit
from editing.gate.kept import gate_of
from editing.gate.questions import questions_of, shipped_questions
from editing.gate.training import GateTraining, kept_states

ROWS = 32  # prompts that are run at once
SEED = 1  # that of the gates that ship
ALPHA, BETA = 0.1, 20.0  # HoReN's damping and inverse temperature (2605.08143)


class AskedProbe(NamedTuple):
    """A prompt that names the subject of a fact, which is given by its number."""

    fact: int
    subject: str
    prompt: str


def scores(lm: LanguageModel, facts: Sequence[Fact], probes: Sequence[AskedProbe]) -> dict[str, list[float]]:
    """By gate the cosine of each probe with its fact's prompt."""
    asked = [AskedProbe(number, fact.subject, fact.statement) for number, fact in enumerate(facts)]
    both = [*asked, *probes]
    of = torch.tensor([probe.fact for probe in probes])
    found = {}
    for name, (_, embed) in GATES.items():
        z = functional.normalize(embed(lm, both).double(), dim=1)
        keys, queries = z[: len(asked)], z[len(asked) :]
        if name == "hopfield":
            recalled = (BETA * queries @ keys.T).softmax(1) @ keys
            queries = functional.normalize((1 - ALPHA) * queries + ALPHA * recalled, dim=1)
        found[name] = (queries * keys[of]).sum(1).tolist()
    return found


def forms_seen(probes: Sequence[AskedProbe], trained: Sequence[Fact]) -> list[bool]:
    """Whether the words around the subject are those of a shipped form or of a fact that a gate was trained on."""
    known = {one.form for one in (*shipped_questions(1, SEED), *questions_of(trained))}
    own = (Fact(probe.subject, probe.prompt.replace(probe.subject, "{}", 1), "-") for probe in probes)
    return [next(questions_of([fact])).form in known for fact in own]


def _embed(lm: LanguageModel, probes: Sequence[AskedProbe], make: Callable[[LanguageModel], Gate]) -> Tensor:
    gate = make(lm)
    return gate.embed(kept_states(lm, gate.layers, [lm.tokens(probe.prompt) for probe in probes]))


def _coefficients(lm: LanguageModel, probes: Sequence[AskedProbe], half: bool) -> Tensor:
    """Coefficients of the layer that `memit` writes last: at the subject, or over the last half of the prompt."""
    layer = Memit().resolved_layers(lm)[-1]
    memory, found = lm.memory(layer), []
    for begin in range(0, len(probes), ROWS):
        some = probes[begin : begin + ROWS]
        batch = lm.batch([lm.tokens(probe.prompt) for probe in some])
        with memory.capture() as seen, torch.no_grad():
            forward_to(lm, batch, layer)
        for row, probe in enumerate(some):
            at = batch.attention_mask[row].nonzero()[:, 0]
            last = subject_span(lm.tokenizer, probe.prompt, probe.subject)[1] - 1
            found.append(
                seen.coefficients[row, at[len(at) // 2 :] if half else at[last : last + 1]].float().mean(0).cpu()
            )
    return torch.stack(found)


Embed = Callable[[LanguageModel, Sequence[AskedProbe]], Tensor]
GATES: dict[str, tuple[str, Embed]] = {  # by name, what it is, and what a model makes of probes: (probe, width)
    "learned": ("the gate that ships", partial(_embed, make=gate_of)),
    "shipped": ("the same, trained on the shipped forms alone", partial(_embed, make=GateTraining(seed=SEED).gate)),
    "untrained": ("cosine of whitened states, untrained", partial(_embed, make=GateTraining(steps=0).gate)),
    "subject": ("cosine of the subject's key (as NeuralDB)", partial(_coefficients, half=False)),
    "hopfield": ("one Hopfield step over the prompt's last half (after HoReN)", partial(_coefficients, half=True)),
}
TITLES = {name: title for name, (title, _) in GATES.items()}
