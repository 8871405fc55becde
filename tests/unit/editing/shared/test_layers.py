from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import tiny

from corrigenda import LanguageModel
from editing import FineTune, NoEdit, RandomUpdate, Rome, prepare
from editing.shared.layers import OneLayer, default_layer, named_layers


@dataclass(frozen=True)
class Several:
    """An editor of several layers."""

    name: ClassVar[str] = "several"
    layers: Any = None

    def edit(self, lm: object, facts: object) -> Any: ...


lm = pytest.fixture(tiny.llama, scope="module")


@pytest.mark.parametrize("editor", [Rome, FineTune])
def test_one_layer(editor: type[Rome | FineTune], lm: LanguageModel) -> None:
    assert editor(layer=2).layers == (2,)
    assert editor(layer=-1).layers == (-1,)  # as it was named
    assert editor(layer=-1).resolved_layer(lm) == tiny.DEPTH - 1
    assert editor().layers == ()
    assert editor().resolved_layer(lm) == default_layer(lm, editor().depth)
    with pytest.raises(IndexError, match="layer 9: the model has 4"):
        editor(layer=9).resolved_layer(lm)
    with pytest.raises(IndexError, match="layer 9: the model has 4"):
        prepare(editor(layer=9), lm)


def test_the_default_may_be_a_setting(lm: LanguageModel) -> None:
    @dataclass(frozen=True)
    class Somewhere(OneLayer):
        layer: int | None = None
        depth: float = 0.5

    assert Somewhere().resolved_layer(lm) == 2
    assert Somewhere(depth=0.25).resolved_layer(lm) == 1
    assert Somewhere(layer=3, depth=0.25).resolved_layer(lm) == 3

    @dataclass(frozen=True)
    class Nowhere(OneLayer):
        layer: int | None = None

    with pytest.raises(NotImplementedError, match="Nowhere has no default layer"):
        Nowhere().resolved_layer(lm)


@pytest.mark.parametrize(
    ("depth", "n_layers", "expected"),
    [(0.1, 30, 3), (0.2, 30, 6), (0.7, 30, 21), (0.84, 30, 25), (0.84, 1, 0), (0.1, 1, 0), (0.7, 12, 8), (1.0, 5, 4)],
)
def test_the_default_is_a_share_of_the_depth(depth: float, n_layers: int, expected: int) -> None:
    class Model:
        pass

    model: Any = Model()
    model.n_layers = n_layers
    assert default_layer(model, depth) == expected


def test_layers_of_any_editor() -> None:
    assert named_layers(NoEdit()) == ()
    assert named_layers(Several([2, -1])) == (2, -1)
    assert named_layers(Several()) == ()
    assert named_layers(RandomUpdate(like=Rome(layer=3))) == (3,)
    assert named_layers(RandomUpdate(like=NoEdit())) == ()


@pytest.mark.parametrize("editor", [Several("auto"), Several([1, "auto"]), Several([1.0]), Several([True])])
def test_layers_that_are_no_numbers(editor: Any, lm: LanguageModel) -> None:
    with pytest.raises(ValueError, match=f"{editor.name}: layer=.* must be a whole number, or null"):
        prepare(editor, lm)


@pytest.mark.parametrize("layer", ["auto", "1", 1.0, True])
def test_an_editor_of_the_project_refuses_them_when_it_is_made(layer: Any) -> None:
    with pytest.raises(ValueError, match=f"Rome: layer={layer!r} must be a whole number"):
        Rome(layer=layer)


def test_prepare_asks_for_every_layer(lm: LanguageModel) -> None:
    prepare(Several([0, -4, 3]), lm)
    with pytest.raises(IndexError, match="layer 4: the model has 4"):
        prepare(Several([0, 4]), lm)


def test_the_field_stays_the_dataclass_own() -> None:
    assert "layers" not in Rome.__dataclass_fields__
    assert issubclass(Rome, OneLayer)
