"""One edit of each kind, and all that an edit may change of a model."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import tiny
import torch
from torch import Tensor

from corrigenda import (
    AddedNeuronsEdit,
    AttachedEdit,
    BlocksEdit,
    CodebookEdit,
    CoefficientEdit,
    ContextEdit,
    CounterfactualEdit,
    Edit,
    Fact,
    HopfieldEdit,
    LanguageModel,
    LowRankEdit,
    MaskedMemoryEdit,
    Origin,
    RetrievalEdit,
    ScopedEdit,
    SideMemoryEdit,
    ValueEdit,
)
from corrigenda.edits.attached import AttachedLayer
from corrigenda.edits.experts import ExpertsEdit
from corrigenda.edits.gate import Gate

PROMPT = "the Eiffel tower is located in the city of"
Make = Callable[[LanguageModel, int], Edit]

FACT = Fact("Eiffel Tower", "the {} is located in", target_new="Rome", target_true="Paris")


def origin(lm: LanguageModel) -> Origin:
    return Origin(lm.name, lm.fingerprint, "by hand", {"rate": 0.5}, (FACT,), ({"loss": 0.25},))


def build(make: Make, seed: int = 0) -> LanguageModel:
    """A model that edits of this kind fit."""
    return tiny.build("mixtral" if make is experts else "llama", seed=seed)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def low_rank(lm: LanguageModel, seed: int, ranks: Mapping[int, int] = MappingProxyType({1: 2, 2: 2})) -> LowRankEdit:
    """Random factors of the given rank for each layer, large enough to matter."""
    ffn, model = lm.memory(1).d_ffn, lm.memory(1).d_model
    factors = {layer: (drawn(seed, ffn, rank) / 3, drawn(seed + 1, rank, model)) for layer, rank in ranks.items()}
    return LowRankEdit.of(lm, origin(lm), factors)


def random_update(lm: LanguageModel, size: float, layer: int = 1, rank: int = 2, seed: int = 0) -> LowRankEdit:
    """A random change of one layer, `size` times as large as its values."""
    memory = lm.memory(layer)
    draw = torch.Generator().manual_seed(seed)
    left, right = torch.randn(memory.d_ffn, rank, generator=draw), torch.randn(rank, memory.d_model, generator=draw)
    right *= size * float(memory.values.norm() / (left @ right).norm())
    return LowRankEdit.of(lm, origin(lm), {layer: (left, right)})


def values(lm: LanguageModel, seed: int) -> Edit:
    return ValueEdit.of(lm, origin(lm), {layer: drawn(seed, *lm.memory(layer).values.shape) for layer in (0, 1)})


def experts(lm: LanguageModel, seed: int) -> Edit:
    d_ffn, d_model = lm.memory(1, 0).values.shape
    places = [(1, 0), (1, 2), (2, 1)]
    return ExpertsEdit(origin(lm), {place: (drawn(seed, d_ffn, 1), drawn(seed + 1, 1, d_model)) for place in places})


def scaled(lm: LanguageModel, seed: int) -> Edit:
    return CoefficientEdit.of(lm, origin(lm), {(1, 3): 30.0, (1, 4): 0.0, (2, 5): float(seed)})


def set_where_predicting(lm: LanguageModel, seed: int) -> Edit:
    return CoefficientEdit.of(lm, origin(lm), {(1, 3): 9.0, (2, 5): float(seed)}, "predicting", "set")


def side_memory(lm: LanguageModel, seed: int) -> Edit:
    memory = lm.memory(2)
    return SideMemoryEdit.of(memory, origin(lm), drawn(seed, 1, *memory.values.shape), torch.zeros(1))


def codebook(lm: LanguageModel, seed: int) -> Edit:
    memory = lm.memory(1)
    entries = drawn(seed, 2, memory.d_ffn), drawn(seed, 2, memory.d_model), torch.full((2,), 1e6)
    return CodebookEdit.of(memory, origin(lm), *entries)


def blocks(lm: LanguageModel, seed: int) -> Edit:
    memory = lm.memory(1)
    members = drawn(seed, 3, memory.d_ffn), torch.tensor([0, 1, 1]), torch.tensor([1, 0, 1])
    clusters = drawn(seed, 2, memory.d_ffn), torch.full((2,), 1e6)  # so wide that one of them answers
    factors = drawn(seed, 2, memory.d_ffn, 1), drawn(seed, 2, 1, memory.d_model)
    return BlocksEdit(origin(lm), memory.layer, memory.path, *members, *clusters, *factors)


def hopfield(lm: LanguageModel, seed: int) -> Edit:
    memory = lm.memory(1)
    keys = torch.nn.functional.normalize(drawn(seed, 2, memory.d_ffn), dim=1)
    entries = keys, drawn(seed, 2, memory.d_model)
    return HopfieldEdit(origin(lm), memory.layer, memory.path, *entries, 0.1, 20.0, -1.0, 0.5, "onwards")  # always met


def attached(lm: LanguageModel, seed: int) -> Edit:
    layers = []
    for layer in (1, 2):
        memory = lm.memory(layer)
        keys = torch.nn.functional.normalize(drawn(seed, 2, 5), dim=1)
        view = torch.zeros(memory.d_ffn), drawn(seed, memory.d_ffn, 5)
        spoken = drawn(seed, 2, memory.d_model), torch.full((2,), -1.0)  # a cosine is always above: all speak
        layers.append(AttachedLayer(memory.layer, memory.path, *view, keys, *spoken))
    return AttachedEdit.of(origin(lm), layers)


def scoped(lm: LanguageModel, seed: int) -> Edit:
    memory = lm.memory(2)
    reads = drawn(seed, memory.d_model), (drawn(seed, memory.d_model, 6),)
    gate = Gate(lm.name, lm.fingerprint, (1,), *reads, 0.5)
    keys = torch.nn.functional.normalize(drawn(seed, 3, 6), dim=1)
    entries = keys, torch.tensor([0, 1, 0]), drawn(seed, 2, memory.d_model), (("Eiffel tower",), ("city",))
    return ScopedEdit(origin(lm), memory.layer, memory.path, gate, *entries, threshold=-1.0)  # open: it speaks


def retrieval(lm: LanguageModel, seed: int) -> Edit:
    d_model = lm.memory(2).d_model
    gate = Gate(lm.name, lm.fingerprint, (1,), drawn(seed, d_model), (drawn(seed, d_model, 6),), 0.5)
    texts = tuple(f"Said of the {name} . " * seed for name in ("tower", "city"))
    keys = torch.nn.functional.normalize(drawn(seed, 2, 6), dim=1)
    return RetrievalEdit(origin(lm), texts, (("Eiffel tower",), ("city",)), keys, -1.0, gate=gate)  # open: one is near


def counterfactual(lm: LanguageModel, seed: int) -> Edit:
    first, second = lm.memory(1), lm.memory(2)
    gate = Gate(lm.name, lm.fingerprint, (1,), drawn(seed, first.d_model), (drawn(seed, first.d_model, 6),), 0.5)
    texts = tuple(f"Said of the {name} . " * seed for name in ("tower", "city"))
    keys = torch.nn.functional.normalize(drawn(seed, 2, 6), dim=1)
    return CounterfactualEdit(
        *(origin(lm), texts, (("Eiffel tower",), ("city",)), keys, 0.5, 1, False),
        gate=gate,
        scope=torch.zeros(6, 3),  # all are in scope of the first
        layers=(1, 2),
        modules=(first.path, second.path),
        left=drawn(seed, 2, first.d_ffn, 2) / 3,
        right=drawn(seed + 1, 2, 2, first.d_model),
    )


def added_neurons(lm: LanguageModel, seed: int) -> Edit:
    memory = lm.memory(2)
    keys, ups, out = (drawn(seed + n, 3, memory.d_model) for n in range(3))
    return AddedNeuronsEdit(origin(lm), memory.layer, memory.path, keys, ups, drawn(seed, 3), out)


def masked_memory(lm: LanguageModel, seed: int) -> Edit:
    memory = lm.memory(1)
    masks = drawn(seed, 2, memory.d_ffn).argsort(1) < memory.d_ffn // 2
    rows = drawn(seed, *memory.values.shape), masks, drawn(seed, memory.d_ffn), drawn(seed, memory.d_ffn).argsort()
    return MaskedMemoryEdit(origin(lm), memory.layer, memory.path, *rows, threshold=0.01)  # nearly always met


def context(lm: LanguageModel, seed: int) -> Edit:
    return ContextEdit(origin(lm), 'Said "Привет",\nthe red tower . ' * seed)


KINDS: list[Make] = [
    low_rank,
    values,
    experts,
    scaled,
    set_where_predicting,
    side_memory,
    codebook,
    blocks,
    hopfield,
    attached,
    scoped,
    retrieval,
    counterfactual,
    masked_memory,
    added_neurons,
    context,
]
SOME: list[Make] = [low_rank, experts, set_where_predicting, attached]
"""With several layers or parts each, and all that the others have."""


def weights(lm: LanguageModel) -> dict[str, Any]:
    return {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}


def state(lm: LanguageModel) -> dict[str, Any]:
    """All that an edit may change: weights, hooks, what forwards are told, and what the model answers."""
    found = weights(lm)
    hooked = [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in lm.model.modules()]
    with torch.no_grad():
        found["logits"] = lm.model(input_ids=torch.tensor([lm.tokens(PROMPT)])).logits
    found |= {"hooked": hooked, "active": lm.routing.active, "generate": "generate" in lm.model.__dict__}
    return found | {"reads": lm.reads(PROMPT)}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(part, other[name]) if isinstance(part, Tensor) else part == other[name]
        for name, part in one.items()
    )
