"""Attention knockout: between which positions, and in which layers, information flows to the answer.

Geva, Bastings, Filippova and Globerson 2023, "Dissecting Recall of Factual Associations in Auto-Regressive Language
Models", section 5. In a window of layers one group of positions may not read another, and the answer's probability
falls as far as it came that way. What cannot change is taken from one recorded run, many windows at once.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel
from corrigenda.errors import SettingsError
from corrigenda.forward.knockout import knocked_out
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import record
from corrigenda.models.alone import one_thread
from corrigenda.settings.checked import AtLeastOne, checked
from locate.flow.results import AttentionKnockoutResult
from locate.question import Question, ask, require_numbers
from locate.windows import around

Group = Literal["first", "subject", "last_subject", "relation", "last"]
"""Positions of a prompt: its first token; the subject's tokens, or the last of them; the tokens that are neither the
subject's nor the last; and the last, where the answer is predicted (all such positions, if it has several tokens)."""

OVERHEAD = 32
"""What starting a layer costs, in tokens run: with fewer rows its time goes into reading its weights."""


@dataclass(frozen=True)
@checked
class AttentionKnockout:
    """The settings of attention knockout.

    Attributes:
        sources: the groups that are not read, one after another.
        reader: the group that may not read them.
        window: in how many layers around each.
        max_tokens: how many tokens run at once, unless one window has more.

    Raises:
        SettingsError: no source is named, or one twice.
    """

    result: ClassVar = AttentionKnockoutResult
    sources: tuple[Group, ...] = ("subject", "relation", "last")
    reader: Group = "last"
    window: AtLeastOne = 9
    max_tokens: AtLeastOne = 4096

    def __post_init__(self) -> None:
        if not self.sources or len(set(self.sources)) < len(self.sources):
            raise SettingsError(
                f"AttentionKnockout: sources={self.sources} must name groups of positions, each once; there are "
                f"{', '.join(get_args(Group))}"
            )

    def check(self, lm: LanguageModel) -> None:
        """A window of more layers than a model has covers all of them.

        Raises:
            UnsupportedModelError: the model is an encoder-decoder.
        """
        lm.architecture.require_one_text("attention knockout")

    @one_thread
    def find(self, lm: LanguageModel, fact: Fact, answer: str | None = None) -> AttentionKnockoutResult:
        """Knocks out the edges of one fact's statement.

        A source that the prompt does not have, or that the reader cannot read anyway (it comes later), is absent from
        the result.

        Args:
            lm: the model, with whatever edits are applied.
            fact: its statement is the prompt.
            answer: as in `locate.question.ask`.

        Raises:
            UnknownFactError: the model's answer is not the fact's true object.
            UnsupportedModelError: the model's attention takes no mask of edges.
            ValueError: there is no reader, or nothing is left for it to read; the model gives no numbers, or gives
                the answer the probability 0.
        """
        self.check(lm)
        question = ask(lm, fact, answer)
        groups = positions_of(question)
        if not groups[self.reader]:
            raise ValueError(f"the prompt {question.prompt!r} has no position of the group {self.reader!r}")
        readers = groups[self.reader]
        causal = lm.architecture.family.causal
        read = {
            name: groups[name]
            for name in self.sources
            if groups[name] and not (causal and min(groups[name]) > max(readers))
        }
        p_clean, probabilities = _Runs(lm, question, self, readers, read).all()
        require_numbers(lm, question.prompt, [probabilities, torch.tensor(p_clean)])
        if p_clean == 0:
            raise ValueError(
                f"{lm.name} gives {question.answer!r} the probability 0 after {question.prompt!r}, and nothing can be "
                "knocked out of it; ask for an answer that it may give, or for what it says (answer='top')"
            )
        return AttentionKnockoutResult(
            fact=fact,
            prompt=question.prompt,
            answer=question.answer,
            answer_ids=question.answer_ids,
            reader=self.reader,
            sources=tuple(read),
            window=self.window,
            p_clean=p_clean,
            probabilities=probabilities,
        )


@one_thread
def attention_knockout(
    lm: LanguageModel, fact: Fact, answer: str | None = None, **settings: Any
) -> AttentionKnockoutResult:
    """Knocks out the edges of one fact: `AttentionKnockout(**settings).find(lm, fact, answer)`."""
    return AttentionKnockout(**settings).find(lm, fact, answer)


def positions_of(question: Question) -> dict[Group, tuple[int, ...]]:
    """The positions of each group in a question's tokens; empty for a group that the prompt does not have."""
    subject = range(*question.subject)
    last = question.predicting
    others = [p for p in range(question.n_prompt) if p not in subject and p not in last]
    return {
        "first": (0,),
        "subject": tuple(subject),
        "last_subject": tuple(subject[-1:]),
        "relation": tuple(others),
        "last": last,
    }


class _Runs:
    """The recorded run of one prompt, and the forwards with edges knocked out that start from it."""

    def __init__(
        self,
        lm: LanguageModel,
        question: Question,
        settings: AttentionKnockout,
        readers: Sequence[int],
        sources: Mapping[Group, Sequence[int]],
    ) -> None:
        self.lm, self.question, self.settings = lm, question, settings
        self.windows = [around(layer, settings.window, lm.n_layers) for layer in range(lm.n_layers)]
        n = len(question.ids)
        edges = torch.zeros(len(sources), n, n, dtype=torch.bool)
        for number, positions in enumerate(sources.values()):
            for reader in readers:
                edges[number, reader, list(positions)] = True
        self.edges = edges
        self.first = min(readers)
        batch = question.batch(lm)
        firsts = {window[0] for window in self.windows}
        at = question.at(1, batch.lengths.device)
        self.recording = record(lm, batch, firsts, at, anew=True)
        if self.recording.cache is None:
            self.first = 0

    @torch.no_grad()
    def all(self) -> tuple[float, Tensor]:
        """P(answer) of the clean run, and with each source knocked out in each window: (source, layer)."""
        assert self.recording.logits is not None
        p_clean = float(self.question.probabilities(self.recording.logits).prod())
        probabilities = torch.zeros(len(self.edges), len(self.windows))
        if len(self.edges):
            for chunk in self.chunks():
                probabilities[:, list(chunk)] = self._run(chunk)
        return p_clean, probabilities

    def _run(self, chunk: range) -> Tensor:
        """The windows around some layers: (source, layer of the chunk)."""
        lowest = self.windows[chunk[0]][0]
        highest = self.windows[chunk[-1]][-1]
        rows = len(self.edges) * len(chunk)
        device = self.recording.batch.lengths.device
        start = torch.full((rows,), self.first, device=device)
        partial = PartialForward(self.lm, self.recording, lowest, start, torch.zeros_like(start))
        edges = self.edges[:, self.first :]  # (source, local position, position)
        nothing = torch.zeros_like(edges)
        with ExitStack() as stack:
            for layer in range(lowest, highest + 1):
                here = [edges if layer in self.windows[around_layer] else nothing for around_layer in chunk]
                stack.enter_context(knocked_out(self.lm, layer, torch.stack(here, 1).flatten(0, 1)))
            logits = partial.logits(partial.local(self.question.at(rows, device)))
        return self.question.probabilities(logits).prod(1).view(len(self.edges), len(chunk)).cpu()

    def chunks(self) -> list[range]:
        """The windows put together so that running them costs least, by a count of layers and tokens.

        Windows run together start at the lowest one's first layer; windows run apart each read the weights again.
        """
        depth, tokens = len(self.windows), len(self.edges) * (len(self.question.ids) - self.first)
        best: dict[int, tuple[float, list[range]]] = {depth: (0, [])}
        for begin in reversed(range(depth)):
            layers = depth - self.windows[begin][0]
            options = []
            for stop in range(begin + 1, depth + 1):
                run = tokens * (stop - begin)
                if stop > begin + 1 and run > self.settings.max_tokens:
                    break
                cost, later = best[stop]
                options.append((cost + layers * (OVERHEAD + run), [range(begin, stop), *later]))
            best[begin] = min(options, key=lambda option: option[0])
        return best[0][1]
