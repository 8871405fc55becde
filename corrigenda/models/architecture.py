"""`Architecture`: the parts of one model, found through its family's entry in the table."""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from corrigenda.errors import UnsupportedModelError
from corrigenda.models.families import Family, family_of, has_encoder, name_of
from corrigenda.models.inspection import inspect_family
from corrigenda.models.matrices import in_out
from corrigenda.models.mixtures import Experts

ACTIVATIONS = ("act_fn", "act", "activation_fn", "activation", "intermediate_act_fn", "gelu_impl")
"""The names under which families keep an FFN's activation."""


def whole_number(value: Any, what: str) -> int:
    """A whole number, of whatever library, as Python's. Raises TypeError: it is none."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be a whole number, not {type(value).__name__} {value!r:.80}") from None


class Architecture:
    """The parts of one model, found through its family's table entry.

    Args:
        model: a causal or masked language model.
        family: the entry to use; by default that of `model.config.model_type`, else what `inspect_family` finds.

    Raises:
        UnsupportedModelError: a part is missing; the message names the part, the path tried and what to do.
    """

    def __init__(self, model: PreTrainedModel, family: Family | None = None) -> None:
        self.model = model
        self.family = family or family_of(model) or inspect_family(model)
        blocks = self._part(model, "blocks", self.family.blocks)
        if not isinstance(blocks, nn.ModuleList) or len(blocks) == 0:
            raise UnsupportedModelError(f"{name_of(model)}: '{self.family.blocks}' is not a list of blocks")
        self.blocks: nn.ModuleList = blocks
        self._experts = {layer: found for layer in range(len(blocks)) if (found := self._find_experts(layer))}
        for layer in range(len(blocks)):
            self.attention(layer)
            if layer not in self._experts:
                self.values(layer), self.keys(layer)
        self._require_own_values()

    def _require_own_values(self) -> None:
        """Refuses layers that are one module, or have one matrix of values: what is done to one is done to both.

        Raises:
            UnsupportedModelError: there are such.
        """
        first: dict[int, int] = {}
        for layer, block in enumerate(self.blocks):
            for part in (block,) if layer in self._experts else (block, self.values(layer).weight):
                other = first.setdefault(id(part), layer)
                if other != layer:
                    raise UnsupportedModelError(
                        f"{name_of(self.model)}: layers {other} and {layer} share their weights, so that an edit of "
                        "one would be one of both; give each its own (copy.deepcopy of the block)"
                    )

    @property
    def has_encoder(self) -> bool:
        """Whether an encoder reads the prompts; the blocks are then the decoder's."""
        return has_encoder(self.model)

    def require_one_text(self, what: str) -> None:
        """Refuses `what` is asked at the tokens of the prompt where an encoder reads them (UnsupportedModelError)."""
        if self.has_encoder:
            raise UnsupportedModelError(
                f"{what} works at tokens of the prompt, and those of {name_of(self.model)} only its encoder reads, "
                "while the memories are the decoder's; take what works where the answer is predicted (finetune, shift, "
                "ultraedit, neurons, grace with a radius; knowledge neurons, the lens), or a decoder"
            )

    def require_causal(self, what: str) -> None:
        """Refuses a masked model for what learns targets that are predicted from what stands before them.

        Raises UnsupportedModelError, whose message begins with `what` was asked.
        """
        if not self.family.causal:
            raise UnsupportedModelError(
                f"{what} learns what a causal model says after a prompt, and {name_of(self.model)} is a masked one; "
                "take the neurons' editors, or a causal model"
            )

    def require_decoder(self, what: str) -> None:
        """Refuses what is learned at tokens of a causal model's prompt elsewhere: both of the checks above."""
        self.require_one_text(what)
        self.require_causal(what)

    @property
    def goes_on(self) -> bool:
        """Whether a forward can go on from the middle of a row: what follows there changes nothing before it."""
        return self.family.causal and not self.has_encoder

    @property
    def n_layers(self) -> int:
        """The number of blocks."""
        return len(self.blocks)

    @property
    def skippable(self) -> Sequence[nn.Module]:
        """The blocks that need not run where what they make is put in; T5's first makes what the others need, too."""
        return [] if self.has_encoder else list(self.blocks)

    def numbered(self, layer: int) -> int:
        """A layer counted from the bottom; negative numbers count from the end.

        Raises:
            IndexError: the model has no such layer.
            TypeError: it is no whole number.
        """
        layer = whole_number(layer, "a layer")
        if not -self.n_layers <= layer < self.n_layers:
            raise IndexError(f"layer {layer}: the model has {self.n_layers} layers, 0 to {self.n_layers - 1}")
        return layer % self.n_layers

    def block(self, layer: int) -> nn.Module:
        """The transformer block of a layer."""
        return self.blocks[layer]

    def attention(self, layer: int) -> nn.Module:
        """The module whose (first) output is what self-attention adds to the residual stream."""
        return self._part(self.blocks[layer], "attention", self.family.attention)

    def cross_attention(self, layer: int) -> nn.Module:
        """The module whose (first) output is what attention to the encoder's states adds to the residual stream.

        Raises:
            UnsupportedModelError: the model is no encoder-decoder, or the family does not say where it is.
        """
        if not self.has_encoder or self.family.cross_attention is None:
            raise UnsupportedModelError(
                f"{name_of(self.model)} has no attention to an encoder's states that is known; if it has one, give its "
                "path as `cross_attention` of a `Family` (load(..., family=Family(...)))"
            )
        return self._part(self.blocks[layer], "cross_attention", self.family.cross_attention)

    def attention_output(self, layer: int) -> nn.Module:
        """The attention's output projection, whose input are the heads' results side by side.

        Raises:
            UnsupportedModelError: the family does not say where it is.
        """
        if self.family.attention_output is None:
            raise UnsupportedModelError(
                f"{name_of(self.model)}: where its attention's output projection is, is not known, so nothing can be "
                "asked of single heads; give its path as `attention_output` of a `Family` (load(..., family=Family(...)"
                ")) or add it to corrigenda/models/families.py"
            )
        return self._matrix(layer, "attention_output", self.family.attention_output)

    def n_heads(self, layer: int) -> int:
        """The number of attention heads of a layer.

        Raises:
            UnsupportedModelError: the configuration does not say it, or it does not fit the output projection.
        """
        width = in_out(self.attention_output(layer))[0]
        config = self.model.config.get_text_config()
        n_heads = getattr(config, "num_attention_heads", None)
        if self.has_encoder:  # where the two differ, that is the encoder's
            n_heads = getattr(config, "decoder_attention_heads", n_heads)
        if not isinstance(n_heads, int) or width % n_heads:
            raise UnsupportedModelError(
                f"{name_of(self.model)}: num_attention_heads={n_heads!r} does not divide the {width} inputs of layer "
                f"{layer}'s attention output"
            )
        return n_heads

    @property
    def embeddings(self) -> nn.Module:
        """The tokens' embedding."""
        return self.model.get_input_embeddings()

    def ffn(self, layer: int) -> nn.Module | None:
        """The module that is the whole FFN of a layer, or None in a family that has none for it."""
        if layer in self._experts:
            return self.whole_ffn(layer)
        (keys, _, _), (values, _, _) = (path.rpartition(".") for path in (self.family.keys, self.family.values))
        return self._part(self.blocks[layer], "FFN", values) if values and keys == values else None

    def experts(self, layer: int) -> Experts | None:
        """The experts of a layer, or None where it has one FFN for all tokens."""
        return self._experts.get(layer)

    def require_experts(self, layer: int) -> Experts:
        """The experts of a layer. Raises UnsupportedModelError: it has one FFN for all tokens."""
        if layer not in self._experts:
            raise UnsupportedModelError(
                f"layer {layer} of {name_of(self.model)} is no mixture of experts: leave out expert and router"
            )
        return self._experts[layer]

    def whole_ffn(self, layer: int) -> nn.Module:
        """The module whose (first) output is what the FFN of a layer answers: of a mixture, all experts together."""
        if layer not in self._experts:
            return self.values(layer)
        assert self.family.mixture is not None
        return self._part(self.blocks[layer], "FFN", self.family.mixture.ffn)

    def shared_expert(self, layer: int) -> tuple[nn.Module, nn.Module, nn.Module]:
        """The modules with the gates, keys and values of the expert that every token goes through.

        Raises:
            UnsupportedModelError: the layer has none.
        """
        self.require_experts(layer)
        shared = self.family.mixture.shared if self.family.mixture else None
        if shared is None:
            raise UnsupportedModelError(f"layer {layer} of {name_of(self.model)} has no shared expert")
        parts = [path.rpartition(".")[2] for path in (self.family.gate or "", self.family.keys, self.family.values)]
        gate, keys, values = (self._matrix(layer, "shared expert", f"{shared}.{part}") for part in parts)
        return gate, keys, values

    def _find_experts(self, layer: int) -> Experts | None:
        mixture = self.family.mixture
        if mixture is None:
            return None
        try:
            module = functools.reduce(getattr, mixture.experts.split("."), self.blocks[layer])
        except AttributeError:  # a block with one FFN for all tokens
            return None
        return Experts(module, f"{name_of(self.model)}: '{mixture.experts}' of layer {layer}")

    def keys(self, layer: int) -> nn.Module:
        """The module that holds the keys of a layer (the "up" matrix where the FFN is gated)."""
        return self._matrix(layer, "keys", self.family.keys)

    def gate(self, layer: int) -> nn.Module | None:
        """The module that holds the gate of a layer, or None for a plain FFN."""
        return None if self.family.gate is None else self._matrix(layer, "gate", self.family.gate)

    def activation(self, layer: int) -> Callable[[Tensor], Tensor]:
        """F of a layer's FFN, which stands beside its keys.

        Raises:
            UnsupportedModelError: it has none of the names that are known.
        """
        around = functools.reduce(getattr, self.family.keys.split(".")[:-1], self.blocks[layer])
        for name in ACTIVATIONS:
            found: Callable[[Tensor], Tensor] | None = getattr(around, name, None)
            if found is not None:
                return found
        raise UnsupportedModelError(
            f"{name_of(self.model)}: the activation of layer {layer} is not known; {type(around).__name__} has none of "
            f"{', '.join(ACTIVATIONS)}"
        )

    def values(self, layer: int) -> nn.Module:
        """The module that holds the values of a layer."""
        return self._matrix(layer, "values", self.family.values)

    def values_path(self, layer: int) -> str:
        """The name of the values' module in the whole model, e.g. ``model.layers.6.mlp.down_proj``.

        For a mixture, the name of the parameter that holds the values of all experts.
        """
        if layer in self._experts:
            assert self.family.mixture is not None
            return f"{self.family.blocks}.{layer}.{self.family.mixture.experts}.down_proj"
        return f"{self.family.blocks}.{layer}.{self.family.values}"

    @property
    def adds_plainly(self) -> bool:
        """Whether adding to an FFN's output is adding to the block's output (OPT-350m normalises in between)."""
        return self.family.adds_plainly and bool(getattr(self.model.config, "do_layer_norm_before", True))

    @property
    def final_norm(self) -> nn.Module | None:
        """The norm before the unembedding, or None."""
        return self._part(self.model, "final_norm", self.family.final_norm) if self.family.final_norm else None

    @property
    def head(self) -> nn.Module:
        """The position-wise module that ends in the logits."""
        if self.family.head is not None:
            return self._part(self.model, "head", self.family.head)
        head = self.model.get_output_embeddings()
        if head is None:
            raise UnsupportedModelError(
                f"{name_of(self.model)} has no output embedding; load it as a causal or masked language model"
            )
        return head

    def _matrix(self, layer: int, part: str, path: str) -> nn.Module:
        module = self._part(self.blocks[layer], part, path)
        weight = getattr(module, "weight", None)
        if not isinstance(weight, Tensor) or (weight.ndim != 2 and not isinstance(module, nn.Linear)):
            raise UnsupportedModelError(
                f"{name_of(self.model)}: the {part} of layer {layer} ('{path}') is a {type(module).__name__} without a "
                "two-dimensional weight; load the model unquantised, or give its paths as a `Family`"
            )
        return module

    def _part(self, root: nn.Module, part: str, path: str) -> nn.Module:
        try:
            return functools.reduce(getattr, path.split("."), root)
        except AttributeError:
            raise UnsupportedModelError(
                f"{name_of(self.model)} has no {part} at '{path}'; give its paths as a `Family` "
                "(load(..., family=Family(...))) or add them to corrigenda/models/families.py"
            ) from None
