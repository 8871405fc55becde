"""LRE: a relation's affine map, inverted, says what to add to a subject's state so that the model says another object.

Hernandez et al. 2024, "Linearity of Relation Decoding in Transformer Language Models", section 3 (causality). There the
model is changed for one forward; that an entry of it stands beside the weights is this project's.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from corrigenda import EditRefusedError, Fact, LanguageModel, Origin
from corrigenda.data.embedded import embedded_facts
from corrigenda.data.relation_facts import read_relations
from corrigenda.data.requests import Request, normalised
from corrigenda.edits.attached import AttachedEdit
from corrigenda.errors import SettingsError
from corrigenda.forward.recording import forward_to
from corrigenda.knowledge.attached import Attached
from corrigenda.knowledge.entries import Entry
from corrigenda.linear_relations import affine_maps, low_rank_inverses, read_samples
from corrigenda.models.alone import one_thread
from corrigenda.prompts import filled_span
from corrigenda.settings.checked import AtLeastOne, ShareBelowOne, checked
from editing.editor import FactRefusedError, require_targets
from editing.registry import register
from editing.shared.layers import OneLayer
from editing.shared.together import together
from editing.spaces import Number, Space


@register(
    "lre",
    paper="Hernandez et al. 2024, Linearity of Relation Decoding in Transformer Language Models",
    aim="beside the weights: the subject's state is moved by the inverse of its relation's affine map",
    space=Space("one", (Number("margin", 0.0, 0.9),)),
    unranked="it has not been run there yet",
)
@dataclass(frozen=True)
@checked
class Lre(OneLayer):
    """The inverse of a relation's affine map, behind the entries of `corrigenda.knowledge.attached`.

    With s what leaves the layer at the subject's last token, o the state after the last layer where the object is
    predicted, and W the mean over samples of d o / d s (`corrigenda.linear_relations`), there is added to s

        delta s = W_r^+ (o' - o)

    o is the fact's own, o' the mean over samples that have the new object; all are asked by the fact's prompt, with
    samples as examples before it. An entry's key is of the bare prompt, at the subject's last token. Samples are facts
    with a true object, of the same relation, or of the same prompt where one names no relation: those of the call
    itself first, then those of `samples`. Nothing is learned by gradient, and no weight changes.

    Attributes:
        layer: the layer after whose FFN delta s is added; None for a tenth of the depth. Not the last.
        samples: a file of one relation's samples, or a folder of such files (docs/locating.md); None for the facts that
            ship.
        jacobians: over how many samples W is the mean, and o' at most. The paper's is 8.
        rank: r, of the inverse. Of a higher one delta s is longer, and says the object less (docs/methods.md).
        margin: how sure an entry is before it speaks (`corrigenda.knowledge.attached.Attached`).
    """

    name: ClassVar[str] = "lre"
    depth: ClassVar[float] = 0.1

    layer: int | None = None
    samples: str | None = None
    jacobians: AtLeastOne = 8
    rank: AtLeastOne = 32
    margin: ShareBelowOne = 0.5

    @one_thread
    @together
    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> AttachedEdit:
        """An entry for each fact; facts of one prompt share a map.

        Raises:
            ContextLengthError: a fact behind its examples is longer than the model reads.
            EditRefusedError: a fact asks for an erasure, there is no fact, or the model gives no finite numbers.
            FactRefusedError: a fact has fewer than two samples of other subjects, or none with the new object.
            FileNotFoundError: there is no file of samples.
            IndexError: the model has no such layer.
            SettingsError: the layer is the last, or more is done between an FFN and the residual stream than adding.
        """
        require_targets(self.name, facts)
        layer = self._require(lm)
        given: Iterable[Fact] = embedded_facts() if self.samples is None else read_relations(self.samples)
        known = [(Request.of(each), each) for each in (*facts, *given)]
        samples = [_samples_of(fact, known) for fact in facts]
        for fact, mine in zip(facts, samples, strict=True):
            self._require_samples(fact, mine)
        deltas: dict[int, Tensor] = {}
        for prompt in dict.fromkeys(fact.prompt for fact in facts):
            numbers = [number for number, fact in enumerate(facts) if fact.prompt == prompt]
            asked = [(facts[number], samples[number]) for number in numbers]
            deltas |= dict(zip(numbers, self._deltas(lm, layer, asked), strict=True))
        values = lm.memory(layer).values.float().cpu()
        entries, report = [], []
        for number, key in enumerate(_keys(lm, layer, facts)):
            entries.append(Entry(str(number), layer, key, key @ values + deltas[number], lm.fingerprint))
            report.append({"samples": len(samples[number]), "delta_norm": float(deltas[number].norm())})
        named = [dataclasses.replace(fact, id=str(number)) for number, fact in enumerate(facts)]
        edit = Attached(margin=self.margin)(lm, named, entries)
        for figures, found in zip(report, edit.origin.report, strict=True):
            figures["threshold"] = found["thresholds"][str(layer)]
        return dataclasses.replace(edit, origin=Origin.of(lm, self, facts, report))

    def _require(self, lm: LanguageModel) -> int:
        """The layer, where it can be used in a model."""
        lm.architecture.require_decoder(self.name)
        layer = self.resolved_layer(lm)
        if layer == lm.n_layers - 1:
            raise SettingsError(f"{self.name}: layer {layer} is the last of {lm.name}; name one below it")
        if not lm.architecture.adds_plainly:
            raise SettingsError(
                f"{self.name}: {lm.name} does more than add an FFN's output to the residual stream; take scoped"
            )
        return layer

    def _require_samples(self, fact: Fact, samples: Sequence[Fact]) -> None:
        """Refuses a fact of which no map can be made, or no state that says the new object."""
        where = "of the facts that ship" if self.samples is None else f"in {self.samples}"
        relation = fact.relation or fact.prompt
        if len(samples) < 2:
            raise FactRefusedError(
                fact,
                f"{len(samples)} other subject{'s' * (len(samples) != 1)} of the relation {relation!r} {where}, and "
                "its map needs 2 or more; name a file of samples (samples=...)",
            )
        if not _with_object(fact, samples):
            raise FactRefusedError(
                fact, f"no other subject of the relation {relation!r} {where} has the object {fact.target_new!r}"
            )

    def _deltas(self, lm: LanguageModel, layer: int, asked: Sequence[tuple[Fact, Sequence[Fact]]]) -> list[Tensor]:
        """W_r^+ (o' - o) of facts of one prompt with their samples, float32 on the CPU.

        Raises:
            EditRefusedError: something is not finite.
        """
        training = _asked_as(asked[0][0], asked[0][1][: self.jacobians])
        seen = read_samples(lm, training, [_others(each, training) for each in training], [layer + 1], [layer + 1])
        weight = affine_maps(lm, seen).at(layer + 1)[0].float()
        if not bool(weight.isfinite().all()):
            raise EditRefusedError(f"{self.name}: the map of the prompt {asked[0][0].prompt!r} is not finite")
        inverse = low_rank_inverses(weight, [self.rank])[0]
        found = []
        for fact, samples in asked:
            donors = _asked_as(fact, _with_object(fact, samples)[: self.jacobians])
            rows = [Fact(fact.subject, fact.prompt, None, fact.target_new, joint=fact.joint), *donors]
            read = read_samples(lm, rows, [_others(each, training) for each in rows], [layer + 1], [layer + 1])
            found.append((inverse @ (read.o[1:].float().mean(0) - read.o[0].float())).cpu())
        return found


def _samples_of(fact: Fact, known: Sequence[tuple[Request, Fact]]) -> list[Fact]:
    """The facts of a fact's relation that have a true object: of each other subject the first."""
    asked, found = Request.of(fact), dict[str, Fact]()
    for request, each in known:
        if request.same_relation(asked) and request.subject != asked.subject and each.target_true is not None:
            found.setdefault(request.subject, each)
    return list(found.values())


def _with_object(fact: Fact, samples: Sequence[Fact]) -> list[Fact]:
    """The samples that have a fact's new object."""
    return [each for each in samples if normalised(str(each.target_true)) == normalised(str(fact.target_new))]


def _asked_as(fact: Fact, samples: Sequence[Fact]) -> list[Fact]:
    """The samples, asked by a fact's prompt, and joined to it as its own object is."""
    return [Fact(each.subject, fact.prompt, None, each.target_true, joint=fact.joint) for each in samples]


def _others(fact: Fact, samples: Sequence[Fact]) -> list[Fact]:
    """The samples of other subjects."""
    return [each for each in samples if normalised(each.subject) != normalised(fact.subject)]


@torch.no_grad()
def _keys(lm: LanguageModel, layer: int, facts: Sequence[Fact]) -> Tensor:
    """The coefficients at the subject's last token of each bare prompt, (fact, d_ffn), float32 on the CPU."""
    at = []
    for fact in facts:
        prompt = lm.reads(fact.statement)
        at.append(filled_span(lm.tokenizer, prompt, fact.prompt, fact.subject)[1] - 1)
    batch = lm.batch([lm.tokens(fact.statement) for fact in facts])
    with lm.memory(layer).capture() as seen:
        forward_to(lm, batch, layer)
    return seen.coefficients[torch.arange(len(facts)), at].float().cpu()
