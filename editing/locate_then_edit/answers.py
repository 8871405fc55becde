"""Keys and output gradients at the tokens from which facts' answers are predicted, or at all of a fact's."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from corrigenda import EditRefusedError, Fact, LanguageModel
from corrigenda.forward.gradients import output_gradients
from editing.editor import FactRefusedError
from editing.shared.outliers import WHY, norms_of, outliers, reading_states
from editing.shared.training_rows import groups_of, target_rows


@dataclass(frozen=True, eq=False)
class AnswerTokens:
    """What layers do at tokens of facts' prompts and targets, facts in order; n such tokens in all.

    Attributes:
        fact: (n,), the number of each one's fact.
        keys: by layer the coefficients m, (n, d_ffn).
        outputs: by layer FFN(x), (n, d_model).
        gradients: by layer, of the fact's loss with respect to FFN(x), (n, d_model).
        losses: (fact,), the mean of -log P of each fact's target tokens.
    """

    fact: Tensor
    keys: dict[int, Tensor]
    outputs: dict[int, Tensor]
    gradients: dict[int, Tensor]
    losses: Tensor


def answer_tokens(
    lm: LanguageModel, facts: Sequence[Fact], layers: Collection[int], end: bool, whole: bool = False
) -> AnswerTokens:
    """Runs the facts' prompts with their targets forward and back once, and looks at some layers.

    With `end` the end token is a part of the target; with `whole` all tokens but the first are looked at, and not only
    those from which a token of the target is predicted. Raises EditRefusedError: a fact is too long; its prompt ends in
    an outlier state; its loss or gradient is not finite.
    """
    rows = [target_rows(lm, fact, end=end) for fact in facts]
    parts: dict[int, list[Tensor]] = {}  # by fact, layer after layer: keys, outputs and gradients
    losses = torch.zeros(len(facts))
    for group in groups_of([len(ids) for ids, _ in rows]):
        batch = lm.batch([rows[number][0] for number in group], [rows[number][1] for number in group])
        place = torch.arange(1, batch.input_ids.shape[1] + 1, device=batch.lengths.device)
        prompts = torch.tensor([rows[number][1] for number in group], device=place.device)[:, None]
        predicts = (place >= prompts) & (place < batch.lengths[:, None])
        at = (place > 1) & (place <= batch.lengths[:, None]) if whole else predicts
        owner = predicts.nonzero()[:, 0]
        n_tokens = predicts.sum(1)
        targets = batch.input_ids.roll(-1, 1)[predicts]
        nll = torch.zeros(len(group), device=place.device)

        def loss(
            logits: Tensor,
            owner: Tensor = owner,
            targets: Tensor = targets,
            n_tokens: Tensor = n_tokens,
            nll: Tensor = nll,
            chosen: Tensor | None = predicts[at] if whole else None,
        ) -> Tensor:
            logits = logits if chosen is None else logits[chosen.to(logits.device)]
            each = nn.functional.cross_entropy(logits.float(), targets.to(logits.device), reduction="none")
            means = each / n_tokens[owner].to(each)
            nll.index_add_(0, owner, means.detach().to(nll))
            return means.sum()

        with reading_states(lm, layers) as states:
            seen = output_gradients(lm, batch, at, layers, loss)
        for number, norms in zip(group, norms_of(states, batch.lengths.tolist()), strict=True):
            if outliers([norms], [rows[number][1] - 1])[0]:
                raise FactRefusedError(facts[number], WHY)
        losses[group] = nll.cpu()
        counts = at.sum(1).tolist()
        columns = [
            part.split(counts) for one in seen.values() for part in (one.coefficients, one.outputs, one.gradients)
        ]
        parts |= {number: [column[row] for column in columns] for row, number in enumerate(group)}
    wrecked = [fact.id for number, fact in enumerate(facts) if not _finite(losses[number], *parts[number])]
    if wrecked:
        raise EditRefusedError(f"the loss or its gradient is not finite at fact {', '.join(wrecked[:5])}")
    joined = [torch.cat([parts[number][column] for number in range(len(facts))]) for column in range(3 * len(layers))]
    fact_of = torch.tensor([number for number in range(len(facts)) for _ in range(len(parts[number][0]))])
    keys, outputs, gradients = (dict(zip(layers, joined[place::3], strict=True)) for place in range(3))
    return AnswerTokens(fact_of, keys, outputs, gradients, losses)


def _finite(*tensors: Tensor) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors)
