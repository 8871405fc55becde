"""`CoefficientEdit`: scales, sets or adds to chosen FFN coefficients while the model runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from corrigenda.edits.edit import Editable
from corrigenda.edits.hooked import HookedEdit, require_range
from corrigenda.edits.origin import Origin, require_finite
from corrigenda.edits.routed import passages
from corrigenda.errors import WrongModelError
from corrigenda.models.bare import BareModel
from corrigenda.models.neurons import Neuron
from corrigenda.models.positions import At
from corrigenda.models.routes import Passage, by_name
from corrigenda.models.sites import Site, entering, through

ScaledAt = Literal["all", "predicting"]
"""At which positions coefficients are changed; `CoefficientEdit` says what each means."""
How = Literal["scale", "set", "add"]
"""What is done with the number that a neuron is given; `CoefficientEdit` says what each means."""


@dataclass(frozen=True, eq=False)
class CoefficientEdit(HookedEdit):
    """Changes some neurons' coefficients by a number for each.

    In the way that `how` says:

    - ``scale``: they are multiplied by it: 0 suppresses, 2 enhances;
    - ``set``: they are it, whatever the prompt (Geva et al. 2022, section 5.1, steer a model's generations so);
    - ``add``: it is added to them.

    At the positions that `positions` says:

    - ``all``: at every position. This is our default;
    - ``predicting``: where the answer is predicted, and nowhere else, as in Dai et al. 2022 (section 4.3): in a masked
      model at the mask; in a causal one at the prompt's last token, and at all after it, since each predicts the next.
      Where a prompt ends is told as for a routed edit (`corrigenda.edits.routed`).

    Attributes:
        scales: for each layer the neurons, (k,) integers, and their numbers, (k,) in float32, on the CPU.
        positions: at which positions.
        how: what the numbers do.

    Raises:
        EditRefusedError: a factor is not finite.
        ValueError: `positions` or `how` is none of these; a neuron is named twice in its layer, or there are
            not as many numbers as neurons.
    """

    scales: Mapping[int, tuple[Tensor, Tensor]]
    positions: ScaledAt = "all"
    how: How = "scale"
    kind: ClassVar[str] = "coefficient"
    elsewhere: ClassVar[str] = (
        "it lies beside the weights, and llama.cpp cannot be told to change coefficients while it runs; use it here "
        "(corrigenda ask, edit.apply), or edit the neurons' values"
    )

    def __post_init__(self) -> None:
        if self.positions not in get_args(ScaledAt):
            raise ValueError(f"positions={self.positions!r} must be one of {', '.join(get_args(ScaledAt))}")
        if self.how not in get_args(How):
            raise ValueError(f"how={self.how!r} must be one of {', '.join(get_args(How))}")
        scales = {}
        for layer, (neurons, factors) in self.scales.items():
            neurons, factors = torch.as_tensor(neurons).long().cpu(), torch.as_tensor(factors).float().cpu()
            if neurons.ndim != 1 or neurons.shape != factors.shape:
                raise ValueError(
                    f"layer {layer}: neurons of shape {tuple(neurons.shape)} and factors of shape "
                    f"{tuple(factors.shape)}; each neuron needs one factor"
                )
            if len(neurons.unique()) < len(neurons):
                raise ValueError(f"layer {layer}: a neuron is named twice in {neurons.tolist()}")
            require_finite(self.kind, {f"layer {layer}: factors": factors})
            scales[int(layer)] = (neurons, factors)
        object.__setattr__(self, "scales", scales)

    @classmethod
    def of(
        cls,
        lm: BareModel,
        origin: Origin,
        factors: Mapping[Neuron, float],
        positions: ScaledAt = "all",
        how: How = "scale",
    ) -> CoefficientEdit:
        """An edit of a model from numbers by (layer, neuron); negative layers count from the end.

        Raises:
            IndexError: the model has no such layer or neuron.
            ValueError: a neuron is given two factors (once by a layer counted from the end).
        """
        by_layer: dict[int, dict[int, float]] = {}
        for (given, number), factor in factors.items():
            layer, neuron = lm.memory(given).place(number)
            chosen = by_layer.setdefault(layer, {})
            if neuron in chosen:
                raise ValueError(f"neuron {neuron} of layer {layer} is given two factors")
            chosen[neuron] = float(factor)
        return cls(
            origin,
            {
                layer: (torch.tensor(list(chosen)), torch.tensor(list(chosen.values())))
                for layer, chosen in sorted(by_layer.items())
            },
            positions,
            how,
        )

    def decides(self, lm: Editable) -> bool:
        """Whether it has to know where a prompt ends."""
        return self.positions == "predicting" and lm.architecture.family.causal

    @contextmanager
    def _hooks(self, lm: Editable) -> Iterator[None]:
        now: list[Passage] = []
        tokens: list[Tensor] = []

        def at() -> At:
            if self.positions == "all":
                return None
            return now[0].tail if lm.architecture.family.causal else tokens[0] == lm.tokenizer.mask_token_id

        def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            asked = by_name(lm.model, args, kwargs).get("input_ids")
            if asked is None:
                raise ValueError(
                    f"a forward was given embeddings, and a {self.kind} edit is applied that looks for the mask among "
                    'the tokens; call the model with input_ids, or edit with positions="all"'
                )
            tokens[:] = [asked]

        with ExitStack() as stack:
            if self.positions == "predicting":
                stack.enter_context(passages(lm, now) if self.decides(lm) else entering(lm.model, begin))
            for layer, (neurons, factors) in self.scales.items():
                memory = lm.memory(layer)
                if self.how == "scale":
                    stack.enter_context(memory.scale(factors, at, neurons))
                else:
                    stack.enter_context(memory.drive(factors, at, neurons, add=self.how == "add"))
                look = partial(self._look, layer, neurons)
                stack.enter_context(through(lm.architecture, Site("coefficients", layer), look))
            yield

    def _look(self, layer: int, neurons: Tensor, coefficients: Tensor) -> None:
        if coefficients.dtype == torch.float16:
            require_range(self.kind, layer, coefficients[..., neurons.to(coefficients.device)])

    @property
    def touched(self) -> tuple[int, ...]:
        """The layers whose coefficients are changed."""
        return tuple(self.scales)

    def _check(self, lm: Editable) -> None:
        if self.positions == "predicting" and not lm.architecture.family.causal and lm.tokenizer.mask_token_id is None:
            raise WrongModelError(
                f"{lm.name} is a masked model, and its tokenizer has no mask token: where it predicts is not known, "
                "and this edit scales coefficients there only"
            )
        for layer, (neurons, _) in self.scales.items():
            if not 0 <= layer < lm.n_layers:
                raise WrongModelError(f"the edit scales neurons of layer {layer}, {lm.name} has {lm.n_layers} layers")
            width = lm.memory(layer).d_ffn
            outside = [neuron for neuron in neurons.tolist() if not 0 <= neuron < width]
            if outside:
                raise WrongModelError(
                    f"layer {layer}: the edit scales neuron {outside[0]}, {lm.name} has {width} there"
                )

    def _summary(self) -> str:
        parts, sign = [], {"scale": "x", "set": "=", "add": "+"}[self.how]
        for layer, (neurons, factors) in self.scales.items():
            named = ", ".join(
                f"{n} {sign} {f:g}" for n, f in zip(neurons[:5].tolist(), factors[:5].tolist(), strict=True)
            )
            more = f" and {len(neurons) - 5} more" if len(neurons) > 5 else ""
            parts.append(f"layer {layer}, neurons {named}{more}")
        where = " where the answer is predicted" if self.positions == "predicting" else ""
        return ("; ".join(parts) or "no neuron") + where

    def _tensors(self) -> dict[str, Tensor]:
        return {
            f"{layer}.{name}": part
            for layer, pair in self.scales.items()
            for name, part in zip(("neurons", "factors"), pair, strict=True)
        }

    def _settings(self) -> dict[str, Any]:
        return {"layers": list(self.scales), "positions": self.positions, "how": self.how}

    @classmethod
    def _restore(cls, origin: Origin, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> CoefficientEdit:
        return cls(
            origin,
            {int(layer): (tensors[f"{layer}.neurons"], tensors[f"{layer}.factors"]) for layer in settings["layers"]},
            settings.get("positions", "all"),  # older edits do not say these two
            settings.get("how", "scale"),
        )
