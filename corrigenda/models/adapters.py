"""PEFT adapters that this project puts into a model itself for a while: it trains them, and takes them out again."""

from typing import Any

import torch

from corrigenda.models.condition import OWN_ADAPTER


def put_in(model: Any, config: Any, seed: int) -> Any:
    """Puts an adapter into a model, which stays in evaluation mode: the `peft.PeftModel` around it.

    The model's modules are replaced in place until `take_out`; the adapter is called `OWN_ADAPTER`. The seed is of its
    first values, which come from torch's own generator.
    """
    from peft import get_peft_model  # slow to import and seldom needed

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        adapted = get_peft_model(model, config, adapter_name=OWN_ADAPTER).eval()
    for name, parameter in adapted.named_parameters():
        # AdaLoRA's rank, a constant: PEFT makes it anew, as one that learns, where a model is on a GPU or at 16 bits.
        if f".ranknum.{OWN_ADAPTER}" in name:
            parameter.requires_grad_(False)
    return adapted


def take_out(model: Any, adapted: Any, merge: bool = False) -> None:
    """Takes an adapter out of a model again; its update stays in the weights only with `merge`."""
    if merge:
        adapted.merge_and_unload()
    else:
        adapted.unload()
    for name in ("peft_config", "_hf_peft_config_loaded"):
        if name in vars(model):
            delattr(model, name)
