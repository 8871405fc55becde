"""Where a subject is enriched with its attributes, and where one of them is extracted.

Geva, Bastings, Filippova and Globerson 2023, "Dissecting Recall of Factual Associations in Auto-Regressive Language
Models", sections 6 and 7. The *attributes rate* of a layer is the share of the top tokens of the subject's last state,
read in words, that are attributes of the subject. An attribute is *extracted* in a layer where it is the top token of
what attention (or the FFN) adds to the state that predicts the answer.
"""

from collections.abc import Collection, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from corrigenda import Fact, LanguageModel
from corrigenda.facts import as_fact
from corrigenda.forward.interventions import Read, intervene
from corrigenda.forward.recording import forward_logits
from corrigenda.models.alone import one_thread
from corrigenda.models.sites import Site, SiteName
from corrigenda.prompts import encode_after, first_word
from corrigenda.settings.checked import AtLeastOne, check_value
from corrigenda.text.display import unspaced
from corrigenda.text.joints import joined
from locate.lens.parts import norm_behind, norms_between
from locate.lens.words import rank_of, read_states, read_static, token_texts
from locate.question import Answer, ask, require_numbers
from locate.saving import SavedResult

COMMON = frozenset(
    "a about after all also an and are as at be been but by can for from had has have he her his i if in into is it "
    "its me my no not of on one or other our out over she so than that the their them then there these they this to "
    "up us was we were what when where which who will with would you your".split()
)
"""Words that say nothing of a subject."""


@dataclass(frozen=True, eq=False)
class AttributeFlow(SavedResult, file="attributes"):
    """The attributes of one subject, layer by layer.

    Attributes:
        fact: the fact.
        prompt: its prompt, as the model read it.
        answer: the answer whose first token is followed; a space alone before it counts as the prompt's.
        k: over how many top tokens the rate is taken.
        n_attributes: how many tokens count as attributes.
        rates: the share of the top k tokens of the subject's last state, after each layer, that are attributes,
            (layer,); None where no attributes were given.
        attention_ranks: the answer's rank in what attention adds where the answer is predicted, (layer,); 0 is the top.
        ffn_ranks: in what the FFN adds there, (layer,).
        state_ranks: in the state after the layer there, (layer,).
    """

    fact: Fact
    prompt: str
    answer: str
    k: int
    n_attributes: int
    rates: Tensor | None
    attention_ranks: Tensor
    ffn_ranks: Tensor
    state_ranks: Tensor

    @property
    def extracted_by_attention(self) -> tuple[int, ...]:
        """The layers in which attention adds the answer as its top token."""
        return tuple((self.attention_ranks == 0).nonzero()[:, 0].tolist())

    def summary(self) -> dict[str, Any]:
        """The figures in plain values."""
        found: dict[str, Any] = {
            "prompt": self.prompt,
            "answer": self.answer,
            "extracted_by_attention": list(self.extracted_by_attention),
            "extracted_by_ffn": (self.ffn_ranks == 0).nonzero()[:, 0].tolist(),
            "first_layer_at_top": next(iter((self.state_ranks == 0).nonzero()[:, 0].tolist()), None),
        }
        if self.rates is not None:
            layer = int(self.rates.argmax())
            found |= {"highest_rate": float(self.rates[layer]), "highest_rate_layer": layer}
        return found

    def table(self) -> Table:
        """A table for a terminal: the rate and the answer's ranks, layer by layer."""
        columns = ["layer", "attention adds", "FFN adds", "state"]
        if self.rates is not None:
            columns.append(f"attributes in the subject's top {self.k} (%)")
        table = Table(*columns, title=f"rank of {escape(self.answer)} (0: top)")
        for layer in range(len(self.state_ranks)):
            ranks = [self.attention_ranks, self.ffn_ranks, self.state_ranks]
            row = [str(layer), *(str(int(each[layer])) for each in ranks)]
            if self.rates is not None:
                row.append(f"{100 * float(self.rates[layer]):.1f}")
            table.add_row(*row)
        return table

    def plot(self, path: str | Path) -> None:
        """Draws the answer's ranks by layer and, where there is one, the rate, as PNG, PDF or SVG."""
        from locate.flow.pictures import ranks_by_layer

        ranks = {
            "what attention adds": self.attention_ranks,
            "what the FFN adds": self.ffn_ranks,
            "the state": self.state_ranks,
        }
        ranks_by_layer(path, ranks, self.answer, self.rates, joined(self.prompt, self.answer))


@one_thread
@torch.no_grad()
def attribute_flow(
    lm: LanguageModel, fact: Fact, texts: Iterable[str] = (), answer: Answer = None, k: int = 50
) -> AttributeFlow:
    """Follows the attributes of a fact's subject, and its answer, through the layers, in one forward of its statement.

    `texts` are what is known of the subject: paragraphs about it, or a list of its attributes. The tokens of their
    words (`attribute_tokens`) are the attributes. (The paper takes a hundred paragraphs of Wikipedia.) The answer is as
    in `locate.question.ask`; its first token is followed. The rate is taken over k top tokens; the paper's is 50.
    Raises UnknownFactError: the model's answer is not the fact's true object; UnsupportedModelError: the model's
    vectors cannot be read in words; ValueError: the texts hold no word that is an attribute, or the model gives no
    numbers.
    """
    as_fact("attribute_flow", fact)
    lm.architecture.require_one_text("attribute_flow")
    k = check_value("attribute_flow", "k", k, AtLeastOne)
    texts = [texts] if isinstance(texts, str) else list(texts)
    attributes = attribute_tokens(lm, texts) if texts else frozenset()
    if texts and not attributes:
        raise ValueError(f"the {len(texts)} texts about {fact.subject!r} hold no word that could be an attribute")
    question = ask(lm, fact, answer)
    batch = question.batch(lm)
    device = batch.lengths.device
    places = torch.zeros_like(batch.input_ids, dtype=torch.bool)
    first = first_word(lm.tokenizer, question.answer_ids)
    subject, last = question.subject[1] - 1, question.predicting[first]
    places[0, [subject, last]] = True
    layers = range(lm.n_layers)
    sites: tuple[SiteName, ...] = ("attention", "ffn", "block")
    with ExitStack() as stack:
        seen = {
            name: [stack.enter_context(intervene(lm, Site(name, layer), Read(), places)) for layer in layers]
            for name in sites
        }
        passed = [stack.enter_context(norms_between(lm, layer)) for layer in layers]
        forward_logits(lm, batch, torch.tensor([last], device=device))
    # (layer, width) at the place that predicts, and at the subject's end; one place may be both.
    found = {name: torch.stack([each.value[-1] for each in parts]) for name, parts in seen.items()}
    ends = torch.stack([each.value[0 if subject <= last else -1] for each in seen["block"]])
    require_numbers(lm, question.prompt, [*found.values(), ends])
    for name in ("attention", "ffn"):  # what a norm behind it (Gemma 2, OLMo 2) makes of it is what is added
        for layer, given in enumerate(passed):
            output = found[name][layer].clone()
            if (norm := norm_behind(given, output, 0, last)) is not None:
                found[name][layer] = norm(output)
    token = question.answer_ids[first]
    return AttributeFlow(
        fact=fact,
        prompt=question.prompt,
        answer=question.answer,
        k=k,
        n_attributes=len(attributes),
        rates=_rates(lm, ends, attributes, k) if attributes else None,
        attention_ranks=rank_of(read_static(lm, found["attention"]), token).cpu(),
        ffn_ranks=rank_of(read_static(lm, found["ffn"]), token).cpu(),
        state_ranks=rank_of(read_states(lm, found["block"]), token).cpu(),
    )


def attribute_tokens(lm: LanguageModel, texts: Iterable[str]) -> frozenset[int]:
    """The tokens of texts' words that could be attributes: whole words of three letters or more, no common ones.

    A word of several tokens has its first counted, if that has three letters or more.
    """
    found = set()
    for text in texts:
        for raw in text.split():
            word = raw.strip(".,;:!?()[]\"'“”‘’")
            if len(word) < 3 or word.lower() in COMMON:
                continue
            first = encode_after(lm.tokenizer, "\n", word if unspaced(word[0]) else f" {word}")[:1]
            if first and first[0] != lm.tokenizer.unk_token_id and len(token_texts(lm, first)[0].strip()) >= 3:
                found.add(first[0])
    return frozenset(found)


def _rates(lm: LanguageModel, states: Tensor, attributes: Collection[int], k: int) -> Tensor:
    """The share of the top k tokens of each state, (layer, d_model), that are attributes: (layer,)."""
    scores = read_states(lm, states)
    top = scores.topk(min(k, scores.shape[-1])).indices
    wanted = torch.tensor(sorted(attributes), device=top.device)
    return torch.isin(top, wanted).float().mean(-1).cpu()
