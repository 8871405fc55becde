"""Which layers an editor writes: named by its user, or by default a share of the model's depth."""

from collections.abc import Sequence
from typing import Any

from corrigenda import LanguageModel


class OneLayer:
    """An editor of one layer, which its field `layer` names; for frozen dataclasses to inherit.

    Attributes:
        layer: the layer; negative numbers count from the end; None for the default.
    """

    layer: int | None

    @property
    def depth(self) -> float:
        """The default layer as a share of the model's depth; a class attribute, or a setting."""
        raise NotImplementedError(f"{type(self).__name__} has no default layer: give it a class attribute `depth`")

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that it was told to write, as they were named; none for the default."""
        return () if self.layer is None else (self.layer,)

    def resolved_layer(self, lm: LanguageModel) -> int:
        """The layer that it writes in a model, counted from the bottom.

        Raises:
            IndexError: the model has no such layer.
        """
        return default_layer(lm, self.depth) if self.layer is None else lm.memory(self.layer).layer


def default_layer(lm: LanguageModel, depth: float) -> int:
    """The layer at a share of the model's depth; at most the last."""
    return min(round(depth * lm.n_layers), lm.n_layers - 1)


def ascending(name: str, lm: LanguageModel, layers: Sequence[int]) -> list[int]:
    """The layers that the editor of a name was told to write, ascending, counted from the bottom.

    Raises:
        IndexError: the model has no such layer.
        ValueError: one is named twice.
    """
    found = sorted(lm.memory(layer).layer for layer in layers)
    if len(set(found)) < len(found):
        raise ValueError(f"{name}: layers={list(layers)} name a layer twice ({found})")
    return found


def last_layers(name: str, lm: LanguageModel, layers: Sequence[int], depth: float, number: int) -> tuple[int, ...]:
    """The layers that an editor writes, ascending: those that were named, else `number` of them, the last at `depth`.

    Raises:
        IndexError: the model has no such layer.
        ValueError: one is named twice.
    """
    if layers:
        return tuple(ascending(name, lm, layers))
    last = default_layer(lm, depth)
    return tuple(range(max(last - number + 1, 0), last + 1))


def named_layers(editor: Any) -> tuple[int, ...]:
    """The layers that an editor was told to write, as they were named; none for its default, or if it has no layers.

    An editor says so by `layers`, or, with one layer only, by `layer`.

    Raises:
        ValueError: what it says is not numbers.
    """
    found = getattr(editor, "layers", getattr(editor, "layer", None))
    if found is None:
        return ()
    layers = tuple(found) if isinstance(found, Sequence) and not isinstance(found, str) else (found,)
    for layer in layers:
        if not isinstance(layer, int) or isinstance(layer, bool):
            raise ValueError(
                f"{editor.name}: layer={layer!r} must be a whole number, or null for the default ('auto' is understood "
                "of the editor that a run names, and of none inside it)"
            )
    return layers
