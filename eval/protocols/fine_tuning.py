"""Fine-tuning robustness: the edited model is fine-tuned a little on text that has nothing to do with the edits.

What lies in the weights is trained along with them. What lies beside them (side memories, codebooks, coefficients, text
before the prompts) stays applied and is not trained: so the model would be used.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch

from corrigenda import LanguageModel
from corrigenda.forward.differentiable import differentiable
from corrigenda.models.adapters import put_in, take_out
from corrigenda.moments.text import Text
from corrigenda.settings.checked import AtLeastOne, Count, Positive, Seed, checked
from corrigenda.system.progress import track


@dataclass(frozen=True)
@checked
class FineTuningSettings:
    """How an edited model is fine-tuned before its edits are scored once more.

    AdamW, with torch's own settings but the learning rate, on the mean -log P of each next token.

    Attributes:
        steps: gradient steps; 0: no fine-tuning.
        lr: the learning rate.
        batch_size: sequences in a step.
        weights: what is trained: "all" of the weights (float32; with gradients, Adam's moments and the copy that the
            model is restored from, five times the model's memory), or "lora": adapters of PEFT on all linear layers,
            which are merged into the weights for the scoring (and then only edits in the weights can be applied).
        rank: of the adapters.
        text: what it is trained on.
        seed: for the order of the sequences, and the adapters' first values.
    """

    steps: Count = 0
    lr: Positive = 1e-5
    batch_size: AtLeastOne = 8
    weights: Literal["all", "lora"] = "all"
    rank: AtLeastOne = 8
    text: Text = field(default_factory=Text)
    seed: Seed = 0


def check_fine_tuning(lm: LanguageModel, settings: FineTuningSettings) -> None:
    """Checks that a model can be fine-tuned as asked for, before anything is edited, or raises ValueError."""
    if not settings.steps:
        return
    lm.architecture.require_one_text(f"fine_tuning.steps={settings.steps}")
    if not lm.architecture.family.causal:
        raise ValueError(
            f"fine_tuning.steps={settings.steps}: {lm.name} is a masked model; only causal ones are trained"
        )
    if any(parameter.is_meta for parameter in lm.model.parameters()):
        raise ValueError(
            f"fine_tuning.steps={settings.steps}: weights of {lm.name} are offloaded (device_map); load it where all "
            "of them have room, or set fine_tuning.steps=0"
        )
    if settings.weights == "all" and lm.dtype != torch.float32:
        raise ValueError(
            f"fine_tuning.weights=all: {lm.name} is in {str(lm.dtype).removeprefix('torch.')}, where steps of "
            f"lr={settings.lr:g} are rounded away, and everything would survive; use model.dtype=float32, or "
            "fine_tuning.weights=lora"
        )


@contextmanager
def finetuned(lm: LanguageModel, settings: FineTuningSettings) -> Iterator[list[float]]:
    """The model, with the edits that are applied now, fine-tuned inside a ``with`` block; yields each step's loss.

    In nats a token. After it every weight is bit for bit what it was: all are copied before, which takes the model's
    memory once more. No edit may be applied or reverted inside the block. Raises ArithmeticError: a loss is not finite;
    ValueError: the model or an applied edit does not allow it; or as the text says.
    """
    check_fine_tuning(lm, settings)
    beside = [edit.kind for edit in lm.edits if not edit.in_weights]
    if settings.weights == "lora" and beside:
        raise ValueError(
            f"fine_tuning.weights=lora: edits of kind {', '.join(sorted(set(beside)))} are applied that lie beside the "
            "weights; adapters would act behind them while they train and before them when they are merged: use "
            "fine_tuning.weights=all"
        )
    sequences = settings.text.sequences(lm)
    kept = [(parameter, parameter.detach().clone(), parameter.requires_grad) for parameter in lm.model.parameters()]
    try:
        with differentiable(), ExitStack() as stack:
            if settings.weights == "lora":
                stack.callback(_adapted(lm, settings))
            else:
                for parameter, _, _ in kept:
                    parameter.requires_grad_(True)
            losses = _train(lm, sequences, settings)
        _stop_training(kept)
        yield losses
    finally:
        _stop_training(kept)
        with torch.no_grad():
            for parameter, old, _ in kept:
                parameter.copy_(old)


def _stop_training(kept: Sequence[tuple[torch.nn.Parameter, torch.Tensor, bool]]) -> None:
    for parameter, _, trained in kept:
        parameter.requires_grad_(trained)
        parameter.grad = None


def _train(lm: LanguageModel, sequences: Sequence[Sequence[int]], settings: FineTuningSettings) -> list[float]:
    """Trains what may be trained; the model stays in the mode it is in, so nothing is dropped out."""
    trained = [parameter for parameter in lm.model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=settings.lr)
    draw = torch.Generator().manual_seed(settings.seed)
    waiting: list[int] = []
    losses: list[float] = []
    for step in track(range(settings.steps), f"Fine-tuning on {len(sequences)} unrelated texts", bar=False):
        while len(waiting) < settings.batch_size:
            waiting += torch.randperm(len(sequences), generator=draw).tolist()
        batch = lm.batch([sequences[number] for number in waiting[: settings.batch_size]])
        del waiting[: settings.batch_size]
        # Nobody tells routed edits where a prompt ends: each text is one.
        logits = lm.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False).logits
        log_probs = logits[:, :-1].float().log_softmax(-1)
        wanted = log_probs.gather(2, batch.input_ids[:, 1:, None])[..., 0]
        counted = batch.attention_mask[:, 1:].bool()
        loss = -wanted[counted].mean()
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            raise ArithmeticError(f"the loss is not finite at step {step + 1} of {settings.steps}")
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
    return losses


def _adapted(lm: LanguageModel, settings: FineTuningSettings) -> Callable[[], None]:
    """Puts adapters into the model; what it returns merges them into the weights and takes them out."""
    from peft import LoraConfig  # slow to import and seldom needed

    config = LoraConfig(r=settings.rank, lora_alpha=2 * settings.rank, target_modules="all-linear")
    adapted = put_in(lm.model, config, settings.seed)
    return partial(take_out, lm.model, adapted, merge=True)
