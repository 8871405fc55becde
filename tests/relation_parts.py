"""Relations of a tiny model: what it says of some subjects counts as their objects; plain forwards to compare with."""

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel
from corrigenda.linear_relations import read_samples
from locate.lens.words import read_states

SUBJECTS = ["Paris", "Rome", "London", "Berlin", "France", "Italy", "England", "Germany", "Eiffel", "Big Ben"]
OBJECTS = ["English", "French", "German", "Dutch", "Spanish"]


def known(lm: LanguageModel, template: str = "the language of {} is", n: int = 4, name: str = "tongue") -> list[Fact]:
    """Facts of which the model knows all that a locator with `n` samples and seed 0 draws for its tests."""
    facts = [
        Fact(subject, template, None, OBJECTS[number % len(OBJECTS)], relation=name)
        for number, subject in enumerate(SUBJECTS)
    ]
    drawn = list(facts)
    random.Random(0).shuffle(drawn)
    training, tests = drawn[:n], drawn[n:]
    says = read_states(lm, states(lm, tests, [training] * len(tests), (1,)).o).argmax(-1).tolist()
    object_of = {fact.subject: str(lm.tokenizer.decode([token])) for fact, token in zip(tests, says, strict=True)}
    return [Fact(f.subject, template, None, object_of.get(f.subject, f.target_true), relation=name) for f in facts]


def states(lm: LanguageModel, facts: Sequence[Fact], examples: Sequence[Sequence[Fact]], layers: Sequence[int]):  # type: ignore[no-untyped-def]
    """`read_samples`, which keeps all that it looks at."""
    with torch.no_grad():
        return read_samples(lm, facts, examples, layers, layers)


def plain(
    lm: LanguageModel, ids: list[int], layer: int, position: int, s: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """What enters a layer at a position, the last state, and the logits; with `s` in that place where it is given."""
    seen = {}

    def enter(_: object, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        state = args[0] if args else kwargs["hidden_states"]
        seen["s"] = state[0, position]
        if s is not None:
            state = state.index_put((torch.tensor(0), torch.tensor(position)), s)
        return ((state, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": state})

    def leave(_: object, __: object, output: object) -> None:
        seen["o"] = (output[0] if isinstance(output, tuple) else output)[0, -1]

    blocks = lm.architecture.blocks
    hooks = [blocks[layer].register_forward_pre_hook(enter, with_kwargs=True), blocks[-1].register_forward_hook(leave)]
    try:
        logits = lm.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
    finally:
        for hook in hooks:
            hook.remove()
    return seen["s"], seen["o"], logits


def jacobian(lm: LanguageModel, ids: list[int], layer: int, position: int) -> Tensor:
    """D of the last state with respect to what enters a layer at a position."""
    with torch.no_grad():
        s = plain(lm, ids, layer, position, None)[0]
    return torch.autograd.functional.jacobian(lambda s: plain(lm, ids, layer, position, s)[1], s)
