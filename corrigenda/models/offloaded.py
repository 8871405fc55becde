"""Weights that are not here as a whole: offloaded ones, and those that are split over processes.

Offloaded weights lie on the disk or in RAM, and come to a device only while their module runs: accelerate leaves empty
("meta") tensors in their places, and keeps the weights in the hook of each module.
"""

import torch
from torch import Tensor, nn

from corrigenda.errors import UnsupportedModelError


def stored(model: nn.Module, name: str) -> Tensor:
    """An offloaded weight, by its name in the model's state, read from where it is kept; only this one is held.

    Raises UnsupportedModelError: nobody says where it is kept.
    """
    path, _, own = name.rpartition(".")
    kept = getattr(getattr(model.get_submodule(path), "_hf_hook", None), "weights_map", None)
    if kept is None:
        raise UnsupportedModelError(
            f"{name} is offloaded (device_map), and where to is not known; load the model where all of its weights "
            "have room"
        )
    weight: Tensor = kept[own]
    return weight


def runs_on(module: nn.Module) -> torch.device:
    """The device that a module with a weight runs on, wherever its weight lies meanwhile."""
    weight: Tensor = module.weight  # type: ignore[assignment]
    device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
    return weight.device if device is None or not weight.is_meta else torch.device(device)


def require_whole(model: nn.Module) -> None:
    """Refuses a model in a wrapper that runs copies of it, and one whose matrices are split over processes.

    Of a split one (tensor-parallel) each process sees a part of its coefficients.

    Raises:
        UnsupportedModelError: it is one of them.
    """
    if not hasattr(model, "config") and hasattr(model, "module"):
        raise UnsupportedModelError(f"the model is wrapped in {type(model).__name__}; give what it wraps: model.module")
    for name, weight in model.named_parameters():
        if getattr(weight, "device_mesh", None) is not None:  # a DTensor; its module takes a second to import
            raise UnsupportedModelError(
                f"{name} is split over processes (tp_plan): such a model can be neither looked into nor edited "
                "in place; load it with device_map, which puts whole layers on several devices"
            )


def require_here(weight: Tensor, path: str) -> None:
    """Refuses a weight that is offloaded: it could be neither read nor written in place (UnsupportedModelError)."""
    if weight.is_meta:
        raise UnsupportedModelError(
            f"{path} is offloaded (device_map): its layer can be looked into while it runs, but its matrices can be "
            "neither read nor edited; edit a layer that lies on a device, give a device_map that puts this one on one, "
            "or take an editor that works beside the weights (context)"
        )
