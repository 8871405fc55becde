"""Causal tracing: which states carry a fact from the subject to the answer.

Meng, Bau, Andonian and Belinkov 2022, "Locating and Editing Factual Associations in GPT", section 2. The subject
(or the relation) is hidden by noise on its embeddings; then, one state at a time, what the model would have computed
without the noise is put back, and how far the answer's probability recovers says how much that state carries. What
cannot change is taken from one recorded run (`corrigenda.forward.partial`), many cells at once.
"""

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel
from corrigenda.errors import SettingsError
from corrigenda.forward.differentiable import differentiable
from corrigenda.forward.interventions import Add, Read, Reading, Replace, intervene
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import Recording, forward_logits, record
from corrigenda.models.alone import one_thread
from corrigenda.models.sites import Site
from corrigenda.settings.checked import AtLeastOne, checked
from locate.question import Part, Question, ask, last_of_relation, require_numbers, require_relations
from locate.tracing.noise import Noise, added_to_embeddings
from locate.tracing.trace import CausalTraceResult
from locate.windows import around

Restored = Literal["block", "ffn", "attention"]
"""The sites (`corrigenda.models.sites`) at which states can be restored."""

PADDING = 0.3
"""What a padded position costs: the attention's share of a token (`corrigenda.forward.packing`)."""

OVERHEAD = 32
"""What starting a forward costs, in tokens run: below so many rows a layer's time goes into reading its weights."""


@dataclass(frozen=True)
@checked
class CausalTrace:
    """The settings of causal tracing.

    Attributes:
        site: what is restored: the block's output of one layer, or the FFN's or attention's outputs in a window.
        window: how many layers a window has, w: layers [l - w // 2, l + ceil(w / 2)) around layer l, clipped at the
            ends of the model. A window of 1 is the layer alone. Block outputs are always restored singly, since
            everything above a restored state follows from it.
        noise: what hides it.
        hidden: what is hidden: the subject, or the relation: all words of the prompt but the subject's.
        method: "exact", a forward for each cell; or "attribution", one forward and one backward for the whole grid:
            the effect to first order, (restored - corrupted state) . dP/d(state), at the corrupted run (Nanda 2023,
            "Attribution Patching").
        severed: "ffn" or "attention" freezes the outputs of these in all layers above the restored one, at the
            restored position, to their corrupted values: what then gets lost went through them (section 2.2, fig. 3).
        max_tokens: how many tokens, padding included, run at once.
    """

    result: ClassVar = CausalTraceResult
    site: Restored = "block"
    window: AtLeastOne = 10
    noise: Noise = field(default_factory=Noise)
    hidden: Part = "subject"
    method: Literal["exact", "attribution"] = "exact"
    severed: Literal["ffn", "attention"] | None = None
    max_tokens: AtLeastOne = 4096

    def __post_init__(self) -> None:
        if self.severed and (self.site != "block" or self.method != "exact"):
            raise SettingsError(
                "CausalTrace: severed tracing restores block outputs by the exact method (site='block')"
            )

    @one_thread
    def find(self, lm: LanguageModel, fact: Fact, answer: str | None = None) -> CausalTraceResult:
        """Traces one fact.

        Args:
            lm: the model, with whatever edits are applied.
            fact: its statement is the prompt.
            answer: as in `locate.question.ask`.

        Raises:
            UnknownFactError: the model's answer is not the fact's true object.
            ContextLengthError: the prompt is longer than the model reads.
            ValueError: the model gives no numbers; or the prompt ends with its subject, and the relation is to be
                hidden.

        A window of more layers than the model has is cut to all of them, with a warning; the trace says its window.
        """
        self.check(lm)
        if self.site != "block" and self.window > lm.n_layers:
            return replace(self, window=lm.n_layers).find(lm, fact, answer)
        question = ask(lm, fact, answer)
        sigma = self.noise.level(lm)
        runs = _Runs(lm, question, self, sigma)
        scores = runs.exact() if self.method == "exact" else runs.attributed()
        require_numbers(lm, question.prompt, [scores, torch.tensor([runs.p_clean, runs.p_corrupted])])
        return CausalTraceResult(
            fact=fact,
            prompt=question.prompt,
            tokens=tuple(str(lm.tokenizer.decode([token])) for token in question.ids[: question.n_prompt]),
            subject=question.subject,
            answer=question.answer,
            answer_ids=question.answer_ids,
            site=self.site,
            window=1 if self.site == "block" else self.window,
            method=self.method,
            severed=self.severed,
            sigma=sigma,
            samples=self.noise.samples,
            p_clean=runs.p_clean,
            p_corrupted=runs.p_corrupted,
            scores=scores,
            hidden=self.hidden,
        )

    @one_thread
    def at_last_subject(
        self, lm: LanguageModel, fact: Fact, answer: str | None = None, layers: Sequence[int] | None = None
    ) -> Tensor:
        """The indirect effects at the subject's last token alone, (layer,): that column of `find`'s exact grid.

        It costs about as much less as the prompt has tokens. States are restored around `layers`, by default all, and
        negative numbers count from the end; the other arguments are those of `find`.

        Raises:
            IndexError: the model has no such layer.
            ValueError: the method is not exact; and what `find` raises.
        """
        return self._columns(lm, fact, ("subject",), answer, layers)[0]

    @one_thread
    def at_last_tokens(
        self, lm: LanguageModel, fact: Fact, answer: str | None = None, layers: Sequence[int] | None = None
    ) -> Tensor:
        """The same at the subject's and at the relation's last token, (2, layer).

        Raises:
            IndexError: as in `at_last_subject`.
            ValueError: as there; or the prompt ends with its subject.
        """
        return self._columns(lm, fact, ("subject", "relation"), answer, layers)

    def _columns(
        self, lm: LanguageModel, fact: Fact, of: Sequence[Part], answer: str | None, layers: Sequence[int] | None
    ) -> Tensor:
        """The indirect effects at some last tokens, (token, layer)."""
        if self.method != "exact":
            raise ValueError(f"CausalTrace: method={self.method!r} gives the whole grid, not some tokens: use find")
        self.check(lm)
        settings = replace(self, window=min(self.window, lm.n_layers))
        question = ask(lm, fact, answer)
        at = [last_of_relation(lm, question) if one == "relation" else question.subject[1] - 1 for one in of]
        runs = _Runs(lm, question, settings, self.noise.level(lm))
        chosen = [lm.architecture.numbered(layer) for layer in (range(lm.n_layers) if layers is None else layers)]
        scores = runs.exact(chosen, at)[chosen][:, at].T
        require_numbers(lm, question.prompt, [scores, torch.tensor([runs.p_clean, runs.p_corrupted])])
        return scores - runs.p_corrupted

    def check(self, lm: LanguageModel) -> None:
        """Says, by a warning, whether the window does not fit a model; `find` then takes the largest that does.

        Raises:
            UnsupportedModelError: the model is an encoder-decoder; or no causal one, and the relation is to be hidden.
        """
        lm.architecture.require_one_text("causal tracing")
        if self.hidden == "relation":
            require_relations(lm)
        if self.site != "block" and self.window > lm.n_layers:
            warnings.warn(
                f"a window of {self.window} layers does not fit {lm.name}, which has {lm.n_layers}: it is traced with "
                f"window={lm.n_layers}",
                stacklevel=3,
            )

    def layers(self, layer: int, depth: int) -> range:
        """The layers that are restored around a layer."""
        if self.site == "block":
            return range(layer, layer + 1)
        return around(layer, self.window, depth)


@one_thread
def causal_trace(lm: LanguageModel, fact: Fact, answer: str | None = None, **settings: Any) -> CausalTraceResult:
    """Traces one fact: `CausalTrace(**settings).find(lm, fact, answer)`."""
    return CausalTrace(**settings).find(lm, fact, answer)


class _Runs:
    """The recorded clean run (row 0) and corrupted runs (the other rows) of one prompt, and the cells on top."""

    def __init__(self, lm: LanguageModel, question: Question, settings: CausalTrace, sigma: float) -> None:
        self.lm, self.question, self.settings = lm, question, settings
        self.first, noise = settings.noise.hiding(lm, question, settings.hidden, sigma)
        self.samples = len(noise)
        self.depth = lm.n_layers
        noise = torch.cat([torch.zeros_like(noise[:1]), noise])
        batch = question.batch(lm, len(noise))
        self.at = question.at(len(noise), batch.lengths.device)
        kept = {site for site in (settings.site, settings.severed) if site is not None}
        if settings.method == "exact":
            kept.discard("block")  # the recording has it, as what enters the next block
        with ExitStack() as stack:
            stack.enter_context(added_to_embeddings(lm, noise, self.first))
            seen = {
                (site, layer): stack.enter_context(intervene(lm, Site(site, layer), Read()))
                for site in kept
                for layer in range(self.depth)
            }
            self.recording: Recording = record(lm, batch, range(self.depth), self.at, anew=True)
        self.outputs = {place: each.value for place, each in seen.items()}
        assert self.recording.logits is not None
        self.recorded = question.probabilities(self.recording.logits)
        self.noise, self.batch = noise, batch
        self.p_clean = float(self.recorded[0].prod())
        self.p_corrupted = float(self.recorded[1:].prod(1).mean())

    # -- the exact grid

    @torch.no_grad()
    def exact(self, layers: Sequence[int] | None = None, only: Sequence[int] = ()) -> Tensor:
        """P(answer) with each state restored, averaged over the noise: (layer, position).

        Around some layers, at the positions `only`; by default all.
        """
        scores = torch.full((self.depth, self.question.n_prompt), self.p_corrupted)
        # Before what is hidden a causal model has nothing to restore: there the corrupted run is the clean one.
        first = self.first if self.lm.architecture.family.causal else 0
        groups = [range(one, one + 1) for one in only if one >= first] if only else self._groups(first)
        for layer in range(self.depth) if layers is None else layers:
            if self.settings.site == "block" and layer == self.depth - 1:
                self._last_block(scores)
                continue
            for group in groups:
                scores[layer, list(group)] = self._cells(layer, group).cpu()
        return scores

    def _last_block(self, scores: Tensor) -> None:
        """What leaves the last block reaches the logits of its own position only, and there it is the clean run's."""
        for token, position in enumerate(self.question.predicting):
            if position < self.question.n_prompt:
                mixed = self.recorded[1:].clone()
                mixed[:, token] = self.recorded[0, token]
                scores[-1, position] = float(mixed.prod(1).mean())

    def _cells(self, layer: int, group: Sequence[int]) -> Tensor:
        """The scores of one layer at some positions, (position,): one row for each position and noise sample."""
        restored = self.settings.layers(layer, self.depth)
        begin = restored[0] + (self.settings.site == "block")
        device = self.batch.lengths.device
        start = torch.tensor(group, device=device).repeat_interleave(self.samples)
        rows = torch.arange(1, self.samples + 1, device=device).repeat(len(group))
        # The first hidden token, restored, is clean in all layers above: it is read off the clean run's cache.
        known = (start == self.first) & self._first_is_clean
        run_from = start + known.long()
        partial = PartialForward(self.lm, self.recording, begin, run_from, rows.masked_fill(known, 0))
        here = partial.local(start)
        states = partial.states
        with ExitStack() as stack:
            if self.settings.site == "block":
                assert states is not None
                corrupted = self.recording.states[begin]
                index = torch.arange(states.shape[1], device=device) + partial.start[:, None]
                index = index.clamp(max=corrupted.shape[1] - 1).to(corrupted.device)
                states = corrupted[rows.to(corrupted.device)[:, None], index]
                every = torch.arange(len(here), device=device)
                states[every[~known], here[~known]] = corrupted[0, start[~known]]
            else:
                for number in restored:
                    clean = self.outputs[self.settings.site, number][0]
                    stack.enter_context(self._put(self.settings.site, number, here, clean[start.to(clean.device)]))
            if self.settings.severed:
                for number in range(layer + 1, self.depth):
                    frozen = self.outputs[self.settings.severed, number]
                    value = frozen[rows.to(frozen.device), start.to(frozen.device)]
                    stack.enter_context(self._put(self.settings.severed, number, here, value))
            logits = partial.logits(partial.local(self.at[rows]), states)
        return self.question.probabilities(logits).prod(1).view(len(group), self.samples).mean(1)

    @property
    def _first_is_clean(self) -> bool:
        """Whether restoring the first hidden token leaves it clean all the way up.

        It does where it sees nothing but what stands before it, which was never corrupted, and itself. And it takes a
        cache to start behind it.
        """
        plain = self.settings.site == "block" and self.settings.severed is None and self.recording.cache is not None
        return plain and self.first < self.question.n_prompt - 1

    def _put(self, site: Restored, layer: int, at: Tensor, value: Tensor) -> AbstractContextManager[Reading]:
        return intervene(self.lm, Site(site, layer), Replace(value), at)

    def _groups(self, first: int) -> list[range]:
        """The positions from `first` on, put together so that running them costs least.

        Positions run together are padded to the first one's length; positions run apart each cost the `OVERHEAD`.
        """
        end, width = self.question.n_prompt, len(self.question.ids)

        def length(position: int) -> int:
            if self.recording.cache is None:
                return width
            return width - position - (position == self.first and self._first_is_clean)

        best: dict[int, tuple[float, list[range]]] = {end: (0, [])}
        for begin in reversed(range(first, end)):
            options: list[tuple[float, list[range]]] = []
            for stop in range(begin + 1, end + 1):
                lengths = [length(position) for position in range(begin, stop)]
                padded = len(lengths) * max(lengths)
                if len(lengths) > 1 and padded * self.samples > self.settings.max_tokens:
                    break
                tokens = self.samples * (sum(lengths) + PADDING * (padded - sum(lengths)))
                cost, groups = best[stop]
                options.append((cost + tokens + OVERHEAD, [range(begin, stop), *groups]))
            best[begin] = min(options, key=lambda option: option[0])
        return best[first][1]

    # -- the approximate grid

    @differentiable()
    def attributed(self) -> Tensor:
        """P(answer) with each state restored, to first order: (layer, position)."""
        site = self.settings.site
        nudges = []
        with ExitStack() as stack:
            stack.enter_context(added_to_embeddings(self.lm, self.noise[1:], self.first))
            for layer in range(self.depth):
                corrupted = self.outputs[site, layer][1:]
                nudges.append(torch.zeros_like(corrupted, requires_grad=True))
                stack.enter_context(intervene(self.lm, Site(site, layer), Add(nudges[-1])))
            rows = torch.arange(1, self.samples + 1, device=self.batch.lengths.device)
            logits = forward_logits(self.lm, self.batch.rows(rows), self.at[rows])
        # dP = P dlog P: through the model goes the gradient of log P, as that of a small P is 0 in 16 bits.
        logs = self.question.log_probabilities(logits).sum(1)
        gradients = torch.autograd.grad(logs.sum(), nudges)
        p = logs.detach().exp()
        effects = []
        for layer, gradient in enumerate(gradients):
            output = self.outputs[site, layer]
            effect = ((output[0] - output[1:]).float() * gradient.float()).sum(-1) * p.to(output.device)[:, None]
            effects.append(effect.mean(0)[: self.question.n_prompt].cpu())
        single = torch.stack(effects)
        windows = [single[list(self.settings.layers(layer, self.depth))].sum(0) for layer in range(self.depth)]
        return self.p_corrupted + torch.stack(windows)
