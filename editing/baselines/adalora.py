"""AdaLoRA: adapters that share out a budget of rank among the layers while they are trained.

Zhang et al. 2023, "AdaLoRA: Adaptive Budget Allocation for Parameter-Efficient Fine-Tuning".
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from corrigenda.errors import SettingsError
from corrigenda.models.condition import OWN_ADAPTER
from corrigenda.settings.checked import AtLeastOne, NotNegative, Share, checked
from editing.baselines.lora import Adapter, Factors
from editing.editor import EditRefusedError
from editing.registry import register
from editing.spaces import Number, Space


@register(
    "adalora",
    paper="Zhang et al. 2023, AdaLoRA: Adaptive Budget Allocation for Parameter-Efficient Fine-Tuning",
    aim="LoRA that finds out which layers need how much rank",
    space=Space("several", (Number("lr", 1e-4, 1e-1, log=True), Number("orthogonality", 0.01, 1.0, log=True))),
    unranked="it has not been run there yet",
)
@dataclass(frozen=True)
@checked
class AdaLora(Adapter):
    """AdaLoRA by PEFT on the value matrices V of some layers; everything else stays as it is.

    V becomes V + (alpha / first_rank) P diag(E) Q, with P, (d_ffn, first_rank), and Q, (first_rank, d_model), held near
    orthogonal by a penalty, the mean of |P^T P - I| and |Q Q^T - I| over all layers (Frobenius norms, as PEFT has it).
    While it is trained the triplets that matter least to the loss are blanked: from `first_rank` for each layer on
    average, by a cubic schedule, down to `rank`. What is left is the edit, a `LowRankEdit`; a layer may be left with
    nothing. Loss, batches and `unedited` are those of `Lora`.

    The schedule needs the number of steps beforehand, so that all of them are taken. There is no `extend`: the budget
    is shared out in one training. Further facts are a further edit, on top.

    Attributes:
        rank: of the layers on average, in the end.
        first_rank: of each layer in the beginning.
        alpha: the update is scaled by alpha / first_rank.
        warm_up: the share of the steps before the first triplet is blanked.
        settle: the share of the steps after the last one is.
        orthogonality: the weight of the penalty.

    Raises:
        SettingsError: there is no rank to share out; or no step for it.
    """

    name: ClassVar[str] = "adalora"

    first_rank: AtLeastOne = 12
    warm_up: Share = 0.1
    settle: Share = 0.3
    orthogonality: NotNegative = 0.5

    def __post_init__(self) -> None:
        if self.first_rank <= self.rank:
            raise SettingsError(f"AdaLora: first_rank={self.first_rank} has to be above rank={self.rank}")
        if self.warm_up + self.settle >= 1:
            raise SettingsError(
                f"AdaLora: warm_up={self.warm_up} and settle={self.settle} leave no step to share out rank in"
            )

    @property
    def until(self) -> None:
        """All steps are taken."""
        return None

    def _config(self, common: dict[str, Any], steps: int) -> Any:
        from peft import AdaLoraConfig  # slow to import

        first, last = int(self.warm_up * steps), int(self.settle * steps)
        if steps - last < 2:
            raise EditRefusedError(
                f"{self.name}: {steps} steps are too few to share out rank in; take more epochs (steps for one fact)"
            )
        return AdaLoraConfig(
            init_r=self.first_rank, target_r=self.rank, tinit=first, tfinal=last, total_step=steps, **common
        )

    def _step(self, adapted: Any, optimiser: torch.optim.Optimizer, loss: Tensor, number: int) -> None:
        super()._step(adapted, optimiser, loss + self.orthogonality * _unlike_orthogonal(adapted), number)
        adapted.base_model.update_and_allocate(number)

    def _factors(self, module: Any) -> Factors:
        # PEFT calls Q of the paper, which reads the coefficients, A, and P, which writes, B.
        scaling = module.scaling[OWN_ADAPTER] / (module.ranknum[OWN_ADAPTER] + 1e-5)
        left, amounts, right = (part[OWN_ADAPTER] for part in (module.lora_A, module.lora_E, module.lora_B))
        kept = amounts[:, 0] != 0
        return (left * amounts)[kept].T.clone(), scaling * right.T[kept]


def _unlike_orthogonal(adapted: Any) -> Tensor:
    found = []
    for name, one in adapted.named_parameters():
        if "lora_A" in name or "lora_B" in name:
            gram = one @ one.T if "lora_A" in name else one.T @ one
            found.append((gram - torch.eye(len(gram), device=gram.device)).norm())
    return torch.stack(found).mean()
