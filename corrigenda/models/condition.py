"""The condition that a model has to be in: what others may have done to it before it is taken, or in between."""

import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from corrigenda.errors import DamagedModelError, UnsupportedModelError

OWN_ADAPTER = "corrigenda"
"""The name of an adapter that this project itself puts inside for a while."""


def taken(model: Any) -> Any:
    """A model as it is looked into and edited: without compiled code, in evaluation mode, out of autograd.

    What was wrapped by `torch.compile` is taken out; compiled in place it runs uncompiled from now on, since hooks do
    nothing in compiled code. Weights that were made under `torch.inference_mode` are made anew as ordinary ones.

    Raises:
        UnsupportedModelError: an adapter is inside.
    """
    model = getattr(model, "_orig_mod", model)
    for module in model.modules():
        if module._compiled_call_impl is not None:
            warnings.warn(
                f"{type(module).__name__} was compiled in place (compile()); it runs uncompiled from now on: edits and "
                "readings do not reach compiled code",
                stacklevel=4,
            )
            module._compiled_call_impl = None
    require_no_adapter(model)
    with torch.inference_mode(False):
        _leave_inference(model)
        return model.eval().requires_grad_(False)


def _leave_inference(model: nn.Module) -> None:
    made: dict[int, Any] = {}  # tied weights stay tied
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and tensor.is_inference():
                    if id(tensor) not in made:
                        plain = tensor.clone()
                        made[id(tensor)] = nn.Parameter(plain, False) if isinstance(tensor, nn.Parameter) else plain
                    tensors[name] = made[id(tensor)]


def settle(model: nn.Module, name: str) -> None:
    """Puts a model that somebody trained meanwhile back into evaluation mode, which is said.

    Dropout would make every figure another one at each call.

    Raises:
        RuntimeError: torch computes in another precision (`require_own_precision`).
        UnsupportedModelError: an adapter was put inside.
    """
    require_no_adapter(model, name)
    require_own_precision(model, name)
    if any(module.training for module in model.modules()):
        model.eval()
        warnings.warn(f"{name} was in train mode (dropout acts there); it is put into eval mode", stacklevel=4)


def refuse_incomplete(name: str | Path, model: nn.Module, loading: Mapping[str, Iterable[str]]) -> None:
    """Refuses a checkpoint that lacked weights: transformers fills them with random numbers and logs it.

    Raises:
        DamagedModelError: which ones are missing.
    """
    missing = sorted(loading["missing_keys"])
    if missing:
        raise DamagedModelError(
            f"the checkpoint {str(name)!r} lacks {len(missing)} of the weights of {type(model).__name__}: "
            f"{', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}"
        )


def not_finite(model: nn.Module) -> tuple[str, nn.Parameter] | None:
    """The first parameter with NaN or infinite numbers, by its name; None where all are finite."""
    for name, weight in model.named_parameters():
        # A sum is one pass and makes nothing as large as the weights; in a narrow type a sum of good ones may overflow.
        if not (weight.is_meta or bool(weight.detach().sum().isfinite()) or bool(weight.isfinite().all())):
            return name, weight
    return None


def require_own_precision(model: nn.Module, name: str) -> None:
    """Refuses what makes torch compute in another precision than that of the weights and of what is kept on disk.

    Raises:
        RuntimeError: ``torch.autocast`` is on, or torch's default dtype is not float32.
    """
    own = next(model.parameters())
    if torch.is_autocast_enabled(own.device.type):
        raise RuntimeError(
            f"torch.autocast is on: {name} would be run, and edits be written, in another precision than {own.dtype}; "
            "leave its block, and load the model in the precision that you want (dtype=...)"
        )
    if torch.get_default_dtype() is not torch.float32:
        raise RuntimeError(
            f"torch's default dtype is {torch.get_default_dtype()} (a loading that failed may have left it): call "
            "torch.set_default_dtype(torch.float32), and load the model in the precision that you want (dtype=...)"
        )


def require_no_adapter(model: nn.Module, name: str = "") -> None:
    """Refuses a model with a PEFT adapter inside.

    Its values are not the FFN's alone, and what writes the model would write the adapter and leave the edit out.

    Raises:
        UnsupportedModelError: it has one.
    """
    tuners = sys.modules.get("peft.tuners.tuners_utils")  # without it there is no adapter
    if tuners is None:
        return
    layers = (each for each in model.modules() if isinstance(each, tuners.BaseTunerLayer))
    found = next((each for each in layers if OWN_ADAPTER not in each.active_adapters), None)
    if found is not None or hasattr(model, "merge_and_unload"):
        named = next((path for path, each in model.named_modules() if each is found), "")
        at = f" (at {named.removeprefix('base_model.model.')})" if named else ""
        raise UnsupportedModelError(
            f"{name or type(model).__name__} has a PEFT adapter inside{at}, which edits would miss and saving would "
            "lose them for: merge it first, model = peft_model.merge_and_unload(), or give the adapter's folder to load"
        )
