"""WISE, as published (``wise_paper``) and as this project changed it (``wise_whitened``): edits in a side memory.

Wang et al. 2024, "WISE: Rethinking the Knowledge Memory for Lifelong Model Editing of Large Language Models".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corrigenda import Edit, Fact, LanguageModel, Origin, SideMemoryEdit
from corrigenda.models.alone import one_thread
from corrigenda.settings.checked import checked
from editing.editor import require_targets
from editing.memory_based.wise.coordinates import Coordinates
from editing.memory_based.wise.learner import Learner
from editing.memory_based.wise.settings import SHAPING, WiseSettings
from editing.memory_based.wise.state import WiseState
from editing.registry import register
from editing.shared.contexts import contexts
from editing.shared.extending import Extendable, check_previous, require_shared, state_of, without
from editing.shared.together import note_disturbance
from editing.shared.training_rows import SideLayer
from editing.spaces import Number, Space


@register(
    "wise_whitened",
    paper="Wang et al. 2024, WISE: Rethinking the Knowledge Memory (`wise_paper`; `wise_whitened` is changed here)",
    aim="beside the weights: facts under many wordings, and prompts that look like them",
    space=Space(
        "one",
        (
            Number("margin", 0.4, only=("threshold", "between")),
            Number("weight", 1.0, 30.0, log=True, only=("units", "layer")),
            # What the margins ask for grows with margin_scale, and what a step adds with lr: they go together.
            Number("lr", 0.06, 8.0, log=True, only=("units", "absolute")),
            Number("margin_scale", 1.0, 64.0, log=True, only=("units", "absolute")),
        ),
    ),
)
@dataclass(frozen=True)
@checked
class Wise(WiseSettings, Extendable[SideMemoryEdit]):
    """A side memory V' beside the values V of one late-middle layer (`SideMemoryEdit` says when it answers).

    One class for two editors. The defaults are *not* the paper's algorithm: they are this project's variant, called
    ``wise_whitened``. The paper's is ``wise_paper``: `conf/editor/wise_paper.yaml` sets each setting as the paper does.
    What both have in common: a fact is learned by gradient on V' - V alone:

        L = -log P(target | prompt) + weight * L_a
        L_a = max(0, D(unrelated) - alpha) + max(0, beta - D(edit)) + max(0, gamma - (D(edit) - D(unrelated)))

    with the mean over the target's tokens and over the rows of each kind; D is the routing score, and L_a the margin
    loss. The gradient reaches only the shard's random subspace: a share `rho` of the entries. Of `shards` shards each
    takes `edits_per_shard` facts; they are merged into one side memory (*merge*, by TIES), or there are several side
    memories (*retrieve*: the one with the highest score answers; `WiseSettings.variant`). A side memory answers
    prompts with D > epsilon.

    **Every departure of ``wise_whitened`` from the paper.** Each is a setting.

    - *One memory, learned whole* (`shards`, `rho`): by default there are no shards, no masks and so no merging: one
      shard has all entries. The paper has k = 2 shards with masks of density 0.2, merged by TIES.
      ``wise_whitened_merge`` and ``wise_whitened_retrieve`` have shards.
    - *Coordinates* (`whiten`): the side memory is learned as V' - V = W Theta, W = (C + ridge)^(-1/2) with the second
      moment C of the layer's coefficients over text, both in units of C's mean diagonal; subspaces, sign and magnitude
      in merging, and the bound, are Theta's. Gradient steps on Theta are steps of V' preconditioned by C^-1, the metric
      in which ROME's update is the smallest: what is learned answers to what is particular to the prompt, and not to
      what all texts have in common.
    - *Units* (`units`, alpha, beta, gamma): u is the median, over unrelated prompts, of the mean of || m_t V || over
      the prompt's tokens: what D would be if the side memory added as much as the layer itself. s, the spread, is the
      95 % quantile of the same over its median. Unless they are given, alpha = `loudness` * u, beta = 2 s alpha and
      gamma = beta - alpha: so that a fact is told from unrelated prompts even where two prompts as far apart as s are
      compared. L_a is in units of u, and the learning rate is lr * u^2 / (rho d_ffn), which makes a step's effect on
      the residual stream the same fraction of u in every model.
    - *Shards are learned together* (`with_others`, `masks`): shards that were learned apart disturb each other when
      they are merged, since each adds to what the others' facts read. So a shard is learned with the finished ones in
      place: their masks are disjoint, what answers in the losses is the merged memory, and replayed facts are of all
      shards. Side memories that were learned apart answer each other's facts; so with *retrieve* one is learned with
      the others in view: the loss has two further terms, the means of max(0, D_other - margin D_own) over the edit's
      rows, D_other the largest D of the other memories, and over `remembered` facts of the other memories, where this
      one is the other. Nothing of a shard is trimmed in merging (`keep`).
    - *Epsilon* (`threshold`, `margin`): the paper's is the smallest D of the facts. Here it lies halfway between the
      highest unrelated prompts (the 99 % quantile of their D) and the lowest fact, but not below `margin` times the
      lowest fact's D. Of unrelated prompts that have the form of facts (the prompts of other facts) half of that margin
      is kept clear, no more: a paraphrase and another subject's prompt can score equally high.
    - *More rows* (`prefixes`, `thinned`, `end_token`): the target is learned after random contexts and after prompts
      with words left out, too, and the end token after it. Small models generalise less to other wordings.
    - *Earlier facts* (`replay`, `remembered`): some are in each step's loss, more of them in the second term of L_a.
    - *More unrelated prompts* (`unrelated_batch`, `hard_negatives`, `other_subjects`): the paper takes one an edit.
    - *Gradient descent* (`steps`, `lr`, `momentum`, `stop`, `max_norm`): with momentum, until the losses are low,
      within a bound on the norm. The paper takes 70 plain steps, without a bound.
    - *The layer* (`depth`): 0.7 of the depth, where SmolLM2 tells prompts apart best (no data were kept); the paper
      finds 0.84.

    **Every departure of ``wise_paper`` from the paper.**

    - *Contexts* (`prefixes`): the loss is of the bare prompt alone, as in the paper's formula. In the paper's
      experiments ten sampled contexts stood before it, too, five of 5 tokens and five of 10, for ROME, MEMIT and GRACE
      as for WISE (so its authors, EasyEdit's issue 329); ``editor.prefixes=10`` does that, at eleven times the rows.
    - *Epsilon* (`threshold`): the paper's is the smallest D that a fact had right after its own edit, by the shard that
      it was learned in (algorithm 1, line 4): ``editor.threshold=edits``. Here it is the smallest D that the facts have
      when all is learned and merged, so that each fact is answered.
    - *Unrelated prompts* (`unrelated`): one for each step, drawn anew; the paper has one for each edit, of zsRE's
      locality questions. By default they are prompts and beginnings of texts that ship with the project.
    - *The loss of a target* is the mean over its tokens, as in the authors' code; the formula has log P of the whole.
    - *The first token* of a text is left out of D, and left alone by the side memory (`SideMemoryEdit` says why). D is
      the mean over a prompt's other tokens. The paper does not say which tokens count; its figures have the mean.
    - *When it is decided*: once for a text, at the end of its prompt; what is generated after it stays with the memory
      that was chosen. The paper says nothing of generation.
    - *Full shards*: with *merge*, facts beyond `shards` times `edits_per_shard` are refused. Shards that are not full
      are merged, too, whenever a call ends; that changes nothing in what is learned later.
    - *Requests* have rules, which follow below; the paper edits each fact once.

    ``editor.variant=retrieve`` is the paper's WISE-Retrieve: a side memory is merged of `shards` shards, and the next
    one begins. (Its masks are new ones, where the paper takes the first ones again.) The replay of the paper's appendix
    is not there; `replay`, `remembered` and `with_others` do what it is for.

    **What the authors' code (EasyEdit) does and ``wise_paper`` does not.** It multiplies the threshold by 0.88
    (`act_ratio`). It takes D behind the activation function f, as the mean of || f(m_t V') - f(m_t V) ||, over the
    target's tokens, too, and alpha 5, beta 20 and gamma 10 are margins of that: D is larger here. It averages a margin
    over the rows that do not meet it. It stops a fact's steps when the whole loss is at most 0.02 and has changed by at
    most 0.0001; `stop` is another rule. Its steps have a weight decay of 1e-5, which reaches the entries outside the
    mask. It bounds each entry (`max_entry`). Beside a merged memory the open shard is one of its own, and the larger D
    answers (issue 480); further shards are merged with the merged memory, at 0.4 to its 0.6.

    Rules for requests (`corrigenda.data.requests`): a fact that was edited before is not edited again (its report says
    which it ``repeats``). One that supersedes an earlier one goes into that one's shard and takes its place: the later
    fact wins, its report says which it ``contradicts``, and the older one is not trained on or counted any more. Where
    the loss is not finite everything stops: the memory stays as it was before that fact, whose report says so.

    The hyper-parameters are those of `WiseSettings`, and:

    Attributes:
        name: what results call the editor.
    """

    name: str = "wise_whitened"

    @one_thread
    def prepare(self, lm: LanguageModel) -> None:
        """Samples the contexts, runs the unrelated prompts and takes the second moment, which are kept on disk.

        Raises:
            IndexError: the model has no such layer.
        """
        lm.architecture.require_decoder("WISE")
        if self.prefixes:
            contexts(lm, self.prefix_lengths, self.text, self.seed)
        Coordinates.of(lm, self.resolved_layer(lm), self)

    @note_disturbance
    def extend(self, lm: LanguageModel, previous: Edit | None, facts: Sequence[Fact]) -> SideMemoryEdit:
        """The side memories of an earlier edit with further facts; the earlier edit itself stays as it is.

        `previous` has to be made with these hyper-parameters (those that shape the memory are checked).

        Raises:
            EditRefusedError: a fact asks for an erasure; there are more facts than the shards hold; `previous` is
                another editor's, of another layer or model, without its editor state, or made with other
                hyper-parameters that shape the memory; or no fact could be edited.
            IndexError: the model has no such layer.
        """
        require_targets("WISE", facts)
        lm.architecture.require_decoder("WISE")
        layer = self.resolved_layer(lm)
        own = check_previous("WISE", lm, [layer], previous, SideMemoryEdit)
        state = None if own is None else self._state(own)
        old = ((), ()) if own is None else (own.origin.facts, own.origin.report)
        with without(lm, previous):
            coordinates = Coordinates.of(lm, layer, self, None if state is None else state.coordinates)
            learner = Learner(self, SideLayer(lm, layer), coordinates, state, old, facts)
            learner.learn()
            origin = Origin.of(lm, self, learner.facts, learner.reports)
            return SideMemoryEdit.of(lm.memory(layer), origin, *learner.result())

    def _state(self, previous: SideMemoryEdit) -> WiseState:
        """What to go on from; the edit has to be made with the hyper-parameters that shape a memory."""
        # By its `shards` a memory of the paper's WISE-Retrieve is told from the next; *merge* may be given more.
        apart = self.variant == "retrieve" and not self.in_view
        require_shared("WISE", self, previous, (*SHAPING, "shards") if apart else SHAPING)
        return state_of("WISE", previous, WiseState)
