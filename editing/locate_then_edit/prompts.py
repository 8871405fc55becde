"""The prompts that an update is computed on, in all their contexts.

Editors that write at one token of the prompt (ROME and its descendants) all start here.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel
from corrigenda.prompts import TokenBatch, encode, encode_target, filled_span, put_before
from corrigenda.text.display import quoted
from editing.editor import EditRefusedError, FactRefusedError, refusing_long, require_room
from editing.shared.frames import NO_FRAMES, Frames, Wording, wordings
from editing.shared.outliers import WHY, outliers, state_norms

Position = Literal["subject", "relation", "last"]
"""Where an update acts: at the subject's last token; at the relation's, which is the prompt's last and stands after the
subject; or at the prompt's last whatever it is, behind a gate."""

MOST_LOGITS = 2**30
"""So many logits are computed at once at most: 4 GiB in float32."""


@dataclass(frozen=True)
class Prompts:
    """The rows of several facts: each statement after each prefix, and each frame, with the target but its last token.

    After them all comes, for each fact, a prompt about the subject whose continuation is to stay as it is.

    Attributes:
        batch: the rows' tokens, fact by fact, prefix by prefix (the bare prompt first).
        fact: (row,), which fact a row belongs to.
        prefix: (row,), which prefix stands before its statement; those of frames have numbers of their own, above all
            prefixes' (`editing.shared.frames.wordings`); -1 for the rows about what is to be kept.
        subject: (row,), where the update acts: at the subject's last token, or at the prompt's (`Position`).
        predicts: (row, position), where the target's tokens are predicted, or the distribution is to be kept.
        targets: (n,), those tokens, in the order of `predicts`; -1 where the distribution is to be kept.
        rewriting: (row,), False for the rows about what is to be kept.
        at_start: (fact,), whether the subject ends at the very first token of the bare prompt.
        outlying: (fact,), how many prompts are left out because the subject's state is an outlier (`ordinary`).
    """

    batch: TokenBatch
    fact: Tensor
    prefix: Tensor
    subject: Tensor
    predicts: Tensor
    targets: Tensor
    rewriting: Tensor
    at_start: Tensor
    outlying: Tensor

    @property
    def n_facts(self) -> int:
        """How many facts the rows are of."""
        return len(self.at_start)

    @property
    def bare(self) -> Tensor:
        """(fact,), the first row of each fact: its bare prompt, unless that is left out (see `bare_out`)."""
        first = torch.ones_like(self.fact, dtype=torch.bool)
        first[1:] = self.fact[1:] != self.fact[:-1]
        return (first & self.rewriting).nonzero()[:, 0]

    @property
    def bare_out(self) -> list[bool]:
        """Whether each fact's bare prompt is left out, where it has others: by `build_prompts` or by `ordinary`."""
        return (self.prefix[self.bare] > 0).tolist()

    def beginning(self, lm: LanguageModel, row: int) -> list[int]:
        """A row's tokens as far as they matter where the update acts: up to there.

        In a masked model they are all, since what follows acts on what is before. Where an edit is applied that is
        routed by the prompt they are the whole prompt, by which it decides.
        """
        end = int(self.subject[row]) + 1
        if not lm.architecture.family.causal:
            end = int(self.batch.lengths[row])
        elif lm.routing.active and self.batch.prompts is not None:
            end = int(self.batch.prompts[row])
        return self.batch.input_ids[row, :end].tolist()

    def report(self) -> list[dict[str, Any]]:
        """What an edit's report says of the contexts of each fact."""
        return [
            {"subject_at_start": start, **({"outlier_contexts": left_out} if left_out else {})}
            for start, left_out in zip(self.at_start.tolist(), self.outlying.tolist(), strict=True)
        ]

    def left(self, number: int, kept: bool) -> list[int]:
        """The prefixes of a fact's prompts where an outlier state left others out; else none.

        And -1 where it left out the row about what is to be kept, which there is with `kept`.
        """
        own = self.fact == number
        found = self.prefix[own & self.rewriting].tolist() if self.outlying[number] else []
        return [*found, -1] if kept and not bool((own & ~self.rewriting).any()) else found

    def of_facts(self, facts: Sequence[int]) -> Prompts:
        """The rows of some of the facts, in ascending order."""
        place = torch.full((self.n_facts,), -1, device=self.fact.device)
        place[list(facts)] = torch.arange(len(facts), device=place.device)
        found = self._rows(place[self.fact] >= 0)
        chosen = list(facts)
        return replace(found, fact=place[found.fact], at_start=self.at_start[chosen], outlying=self.outlying[chosen])

    def _rows(self, keep: Tensor) -> Prompts:
        """Some of the rows, where `keep`, (row,), is True."""
        rows = keep.nonzero()[:, 0]
        owner = keep.repeat_interleave(self.predicts.sum(1))
        batch = self.batch.rows(rows)
        return replace(
            self,
            batch=batch,
            fact=self.fact[rows],
            prefix=self.prefix[rows],
            subject=self.subject[rows],
            predicts=self.predicts[rows, : batch.input_ids.shape[1]],
            targets=self.targets[owner],
            rewriting=self.rewriting[rows],
        )

    def ordinary(self, lm: LanguageModel, facts: Sequence[Fact], layers: Collection[int]) -> Prompts:
        """The rows without those in which the subject's state after one of the layers is an outlier.

        Raises FactRefusedError: a fact has no other prompt.
        """
        norms, subjects = state_norms(lm, self.batch, layers), self.subject.tolist()
        keep, outlying = torch.ones_like(self.rewriting), self.outlying.clone()
        for number, fact in enumerate(facts):
            rows = (self.fact == number).nonzero()[:, 0].tolist()
            for row, out in zip(rows, outliers([norms[n] for n in rows], [subjects[n] for n in rows]), strict=True):
                keep[row] = not out
                outlying[number] += out and bool(self.rewriting[row])
            if not bool((keep & self.rewriting)[rows].any()):
                raise FactRefusedError(fact, WHY)
        return self if bool(keep.all()) else replace(self._rows(keep), outlying=outlying)


def warn_of_contexts(editor: str, facts: Sequence[Fact], prompts: Sequence[Prompts]) -> None:
    """Names the facts whose bare prompts are left out, or end their subject at the very first token."""
    parts = [part for one in prompts for part in zip(one.at_start.tolist(), one.bare_out, strict=True)]
    for which, what in (
        ([start for start, _ in parts], "the subjects of these facts end at the very first token"),
        (
            [out and not start for start, out in parts],
            "at the subjects of these facts the state is an outlier (a massive activation) without words before it",
        ),
    ):
        named = ", ".join(repr(fact.id) for fact, one in zip(facts, which, strict=True) if one)
        if named:
            warnings.warn(f"{editor}: {what}, and they hold only where something precedes it: {named}", stacklevel=6)


def build_prompts(
    lm: LanguageModel,
    facts: Sequence[Fact],
    prefixes: Sequence[str],
    kept_prompt: str,
    kept_position: Literal["subject", "last"],
    frames: Frames = NO_FRAMES,
    position: Position = "subject",
) -> Prompts:
    """The rows that an edit of `facts` is computed on.

    Args:
        lm: the model.
        facts: the facts; each needs a `target_new`.
        prefixes: the texts that stand before the statements; the first is empty.
        kept_prompt: the prompt whose continuation is to stay as it is, with one ``{}``.
        kept_position: where it is to stay: at the subject's last token, or at the prompt's. Where the update acts at
            the relation's, always at the prompt's.
        frames: the facts' other forms.
        position: where the update acts. At the relation's last token frames that end with the subject are left out.
            Behind a gate ("last") no prompt is to be kept: the gate sees to it.

    A subject that ends at the very first token is left out without a prefix, where there are others: the first
    position's activations are unlike any other's in most models (attention sinks), so a key taken there stands for
    "the beginning of the text" more than for the subject, and an update along it breaks every text ("The Fall of
    ROME", Yang et al. 2024). Such an edit then holds wherever something precedes the subject.

    Raises:
        EditRefusedError: a fact is longer than an edit is computed on; or it has no token of the relation after its
            subject, and the update is to act there; or the targets of all have too many tokens.
    """
    rows: list[_Row] = []
    at_start = []
    at_subject = position == "subject"
    for number, fact in enumerate(facts):
        every = wordings(fact, prefixes, frames, lm.tokenizer)
        at_start.append(at_subject and _at_start(lm, fact))
        if position == "relation":  # where a frame ends with the subject there is none
            every = [one for one in every if one.fact is fact or not one.fact.prompt.rstrip().endswith("{}")]
        later = [one for one in every if not (at_subject and _left_out(lm, one, len(prefixes)))]
        try:
            rows += [_rewriting(lm, one, number, position) for one in later or every]
        except FactRefusedError as refusal:  # that of a frame is the fact's own
            raise FactRefusedError(fact, refusal.why) from refusal
    n_rewriting = len(rows)
    if position != "last":
        rows += [_kept(lm, fact, number, kept_prompt, kept_position, position) for number, fact in enumerate(facts)]
    _require_memory(lm, facts, sum(len(row.targets) for row in rows))
    batch = lm.batch([row.ids for row in rows], [len(row.ids) - len(row.targets) + 1 for row in rows])
    predicts = torch.zeros(batch.input_ids.shape, dtype=torch.bool)
    for place, row in enumerate(rows):
        predicts[place, row.predicting : row.predicting + len(row.targets)] = True
    device = batch.input_ids.device
    return Prompts(
        batch=batch,
        fact=torch.tensor([row.fact for row in rows], device=device),
        prefix=torch.tensor([row.prefix for row in rows], device=device),
        subject=torch.tensor([row.subject for row in rows], device=device),
        predicts=predicts.to(device),
        targets=torch.tensor([token for row in rows for token in row.targets], device=device),
        rewriting=torch.arange(len(rows), device=device) < n_rewriting,
        at_start=torch.tensor(at_start),
        outlying=torch.zeros(len(facts), dtype=torch.long),
    )


class _Row(NamedTuple):
    """A row of tokens: of which fact, behind which prefix (-1: what is to stay), where the update acts.

    From the position `predicting` on it predicts `targets`, one a position; -1 stands for a whole distribution.
    """

    ids: list[int]
    fact: int
    prefix: int
    subject: int
    predicting: int
    targets: list[int]


def _at_start(lm: LanguageModel, fact: Fact) -> bool:
    """Whether the subject ends at the very first token of the bare prompt."""
    return filled_span(lm.tokenizer, fact.statement, fact.prompt, fact.subject)[1] == 1


def _left_out(lm: LanguageModel, wording: Wording, n_prefixes: int) -> bool:
    """Whether nothing stands before a subject at the very start; of prefixes the first alone may be the bare one."""
    bare = not wording.prefix and (wording.place == 0 or wording.place >= n_prefixes)
    return bare and _at_start(lm, wording.fact)


def _rewriting(lm: LanguageModel, wording: Wording, number: int, position: Position) -> _Row:
    """A wording of a fact, with its target."""
    fact = wording.fact
    assert fact.target_new is not None
    prompt = lm.reads(put_before(lm.tokenizer, wording.prefix, fact.statement))
    ids = encode(lm.tokenizer, prompt)
    with refusing_long(fact):
        target = encode_target(lm.tokenizer, prompt, fact.target_new, fact.joint)
    require_room(lm, fact, len(ids) + len(target) - 1)
    end = len(ids)
    if position != "last":
        subject = filled_span(lm.tokenizer, prompt, fact.prompt, fact.subject)[1]
        if position == "subject":
            end = subject
        elif subject == end:
            raise FactRefusedError(
                fact,
                f"the prompt {quoted(fact.statement)} ends with its subject, and no token of the relation stands after "
                "it; take position=subject, or a prompt that goes on after the subject",
            )
    return _Row(ids + target[:-1], number, wording.place, end - 1, len(ids) - 1, target)


def _kept(
    lm: LanguageModel, fact: Fact, number: int, prompt: str, kept: Literal["subject", "last"], position: Position
) -> _Row:
    """The prompt about the fact's subject whose continuation is to stay, and where the update acts on it."""
    text = lm.reads(prompt.replace("{}", fact.subject))
    end = filled_span(lm.tokenizer, text, prompt, fact.subject)[1]
    ids = encode(lm.tokenizer, text)
    require_room(lm, fact, len(ids))
    if position == "relation":
        end = len(ids)
    elif kept == "subject":
        ids = ids[:end]
    return _Row(ids, number, -1, end - 1, len(ids) - 1, [-1])


def _require_memory(lm: LanguageModel, facts: Sequence[Fact], n_tokens: int) -> None:
    """Refuses facts whose targets, in all contexts, take more logits than `MOST_LOGITS`."""
    vocabulary = int(lm.model.get_input_embeddings().weight.shape[0])
    if n_tokens * vocabulary > MOST_LOGITS:
        asked = ", ".join(repr(fact.id) for fact in facts[:5]) + (", ..." if len(facts) > 5 else "")
        raise EditRefusedError(
            f"the targets of {len(facts)} facts ({asked}) have {n_tokens} tokens in all contexts: "
            f"{n_tokens * vocabulary * 4 / 2**30:.1f} GiB of logits, and at most {MOST_LOGITS * 4 / 2**30:.0f} are "
            "held; take shorter targets, or a smaller batch_size"
        )
