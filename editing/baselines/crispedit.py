"""CrispEdit: fine-tuning that stays where the model's answers to running text hardly change.

Ikram, Firouzkouhi, Tu, Soltanolkotabi and Rashidinejad 2026, "CrispEdit: Low-Curvature Projections for Scalable
Non-Destructive LLM Editing".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from corrigenda import LanguageModel
from corrigenda.edits.weights import require_writable
from corrigenda.errors import SettingsError
from corrigenda.models.alone import one_thread
from corrigenda.moments.curvature import Labels, curvature
from corrigenda.moments.text import Text
from corrigenda.settings.checked import Count, Positive, Share, checked
from editing.baselines.finetune import FineTune, Projection
from editing.editor import EditRefusedError
from editing.locate_then_edit.guards import warn_of_rank
from editing.registry import register
from editing.spaces import Number, Space


@register(
    "crispedit",
    paper="Ikram et al. 2026, CrispEdit: Low-Curvature Projections for Scalable Non-Destructive LLM Editing",
    aim="fine-tuning of all facts at once, off the directions of high curvature",
    space=Space("one", (Number("gamma", 0.5, 0.99), Number("lr", 1e-4, 1e-2, log=True))),
)
@dataclass(frozen=True)
@checked
class CrispEdit(FineTune):
    """Fine-tuning of one value matrix within the low-curvature subspace of the loss over general text.

    The curvature is the Gauss-Newton matrix, as K-FAC approximates it (`corrigenda.moments.curvature`): A (x) G with
    A = E[m m^T] of the layer's coefficients and G = E[g g^T] of the gradients at its output. The pairs of eigenvectors
    with the largest products of eigenvalues, as few as hold the share `gamma` of the trace, are barred: with U_A, U_G
    the eigenvectors and M the mask of the other pairs, a gradient D becomes

        U_A ((U_A^T D U_G) * M) U_G^T

    Adam's step is projected the same way, for Adam scales entry by entry and would leave the subspace; so the whole
    change stays in it. There is no KL term: the subspace stands for it. The factors are kept on disk.

    What of the paper was at hand are its idea and its formulas, not its settings; chosen here: one layer, the same loss
    and mini-batches as `FineTune` (so that with gamma=0 it is `FineTune`), G from next tokens that are sampled from the
    model's predictions, over the text that ships. `extend` goes on in the same subspace and has no curvature of the
    earlier facts: learn all facts so far together (job.sequential.regime=together), or earlier ones fade.

    With SmolLM2 and text sampled from it, the CounterFact facts 1,001 to 1,020 and twelve passes over them, it has
    as many of the facts as `FineTune` (efficacy 55 against 50 %), a neighbourhood KL of 0.05 against 0.19, and a
    perplexity drift of -0.003 against 0.004. Other values of gamma were not compared yet
    (`docs/reports/many_facts_tuning.py` does that).

    Attributes:
        gamma: the share of the curvature's trace that the barred directions hold; 0 bars none.
        text: over which text both factors are taken.
        tokens_per_coefficient: the text has at least so many tokens for each of the layer's coefficients; 0 for the
            text as it is; None for 24 of the text that ships, and 8 of any other.
        labels: the next tokens for G: ``sampled`` from the model's predictions, or the ``text``'s own.
    """

    name: ClassVar[str] = "crispedit"

    gamma: Share = 0.8
    text: Text = field(default_factory=Text)
    tokens_per_coefficient: Count | None = None
    labels: Labels = "sampled"
    bound: Positive | None = None

    def __post_init__(self) -> None:
        if self.bound is not None:
            raise SettingsError(
                f"CrispEdit: bound={self.bound} would take the change out of its subspace; take bound=null, or a "
                "larger gamma"
            )

    @one_thread
    def prepare(self, lm: LanguageModel) -> None:
        """Takes the curvature's factors, which are kept on disk.

        Raises:
            IndexError: the model has no such layer.
            UnsupportedModelError: its values are quantised.
        """
        require_writable(lm, [self.resolved_layer(lm)])
        self.projection(lm)

    def projection(self, lm: LanguageModel) -> Projection:
        """The projection on the low-curvature subspace.

        Raises:
            EditRefusedError: no direction is left.
            IndexError: the model has no such layer.
        """
        layer = self.resolved_layer(lm)
        each = self.text.per_coefficient(lm, self.tokens_per_coefficient)
        text = self.text.at_least(each * lm.memory(layer).d_ffn)
        factors = curvature(lm, layer, text, self.labels)
        warn_of_rank(self.name, factors.coefficients)
        low = factors.low(self.gamma)
        if not bool(low.free.any()):
            raise EditRefusedError(
                f"{self.name}: gamma={self.gamma} bars every direction of layer {layer}; take a smaller share"
            )
        return low.project
