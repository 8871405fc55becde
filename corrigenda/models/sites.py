"""The sites of a model: where a forward can be read or changed; and the one place that puts hooks on modules.

A site is a name and, in all but two cases, a layer. What is there has the shape (batch, position, width), whatever the
family's module makes of it:

    embeddings         the tokens' embeddings, before anything is added to them or they are scaled
    residual_before    the residual stream that enters the layer
    attention          what self-attention adds to the residual stream
    heads              what enters the attention's output projection, head by head: (batch, position, head, head size)
    coefficients       the FFN's coefficients m, (batch, position, d_ffn)
    ffn                the FFN's output m V + b2
    block              the residual stream after the layer
    before_head        the last state, which enters the head

A layer that is a mixture of experts has one more site, and two that it has for each expert (`Site.expert`):

    router             the experts' weights in the layer's answer, (batch, position, expert); 0 for those not chosen
    coefficients       the coefficients m_e of one expert, zeros at positions that it was not chosen for
    ffn                the output of one expert, before it is weighted, zeros likewise; without `expert`, of all

The layers of an encoder-decoder are its decoder's, and have one more:

    cross_attention    what attention to the encoder's states adds to the residual stream

A hook is a function that torch calls when a module runs. No other file registers one: what is registered here is gone
when its ``with`` block ends, also when the block raises.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from corrigenda.models.architecture import Architecture
from corrigenda.models.mixtures import Choice

SiteName = Literal[
    "embeddings",
    "residual_before",
    "attention",
    "heads",
    "coefficients",
    "ffn",
    "block",
    "before_head",
    "router",
    "cross_attention",
]
ALL_SITES: tuple[SiteName, ...] = get_args(SiteName)
SITES: tuple[SiteName, ...] = ALL_SITES[:-2]
"""The sites of every model; `router` only mixtures of experts have, `cross_attention` only encoder-decoders."""
WITHOUT_LAYER: tuple[SiteName, ...] = ("embeddings", "before_head")
"""The sites that a model has once and not in each layer."""
INPUTS: tuple[SiteName, ...] = ("residual_before", "heads", "coefficients", "before_head")
"""The sites that are a module's input; the others are a module's output."""

Change = Callable[[Tensor], Tensor | None]
"""What is made of the tensor at a site: a new one in its place, or None, which leaves it as it is."""


@dataclass(frozen=True)
class Site:
    """A place in a model's forward; see above.

    Attributes:
        name: one of `SITES`.
        layer: which layer, 0 for the first; negative numbers count from the end. None for what a model has once.
        expert: which expert of a mixture: a number, or "shared" for the one that every token goes through.

    Raises:
        ValueError: there is no such site, or the layer or the expert is missing or too much.
    """

    name: SiteName
    layer: int | None = None
    expert: int | Literal["shared"] | None = None

    def __post_init__(self) -> None:
        if self.name not in ALL_SITES:
            raise ValueError(f"unknown site {self.name!r}; the sites are {', '.join(ALL_SITES)}")
        if self.expert is not None and self.name not in ("coefficients", "ffn"):
            raise ValueError(f"the site {self.name!r} has no experts, got expert={self.expert!r}")
        if (self.layer is None) != (self.name in WITHOUT_LAYER):
            needed = "has no layer" if self.name in WITHOUT_LAYER else "needs a layer"
            raise ValueError(f"the site {self.name!r} {needed}, got layer={self.layer}")


@contextmanager
def through(architecture: Architecture, site: Site, change: Change) -> Iterator[None]:
    """Passes what is at a site through a function in the forwards inside the block.

    It gets the whole tensor, (batch, position, width); heads are (batch, position, head, head size). Where several are
    open at once, those at one site act in the order they were opened. In a partial forward nothing acts in the layers
    that do not run. Raises IndexError: the model has no such layer; UnsupportedModelError: the site is not known in
    this family.
    """
    layer = None if site.layer is None else architecture.numbered(site.layer)
    if layer is not None and (site.name == "router" or isinstance(site.expert, int)):
        with _through_experts(architecture, site, layer, change):
            yield
        return
    module = _module(architecture, site, layer)
    block = None if layer is None else architecture.block(layer)
    n_heads = architecture.n_heads(layer) if site.name == "heads" and layer is not None else None
    shape: list[torch.Size] = []

    def note(state: Tensor) -> None:
        shape[:] = [state.shape[:2]]

    def changed(tensor: Tensor) -> Tensor | None:
        if module is block and isinstance(block.__dict__.get("forward"), _HandOn):
            return None
        # OPT flattens batch and position before its FFN.
        unfolded = tensor.view(*shape[0], -1) if tensor.ndim == 2 and shape else tensor
        new = change(unfolded if n_heads is None else unfolded.unflatten(-1, (n_heads, -1)))
        return None if new is None else new.reshape(tensor.shape)

    def leave(output: Any) -> Any:
        new = changed(output[0] if isinstance(output, tuple) else output)
        if new is None:
            return None
        return (new, *output[1:]) if isinstance(output, tuple) else new

    with ExitStack() as stack:
        if block is not None and module is not block:
            stack.enter_context(state_entering(block, note))
        stack.enter_context(state_entering(module, changed) if site.name in INPUTS else leaving(module, leave))
        yield


@contextmanager
def _through_experts(architecture: Architecture, site: Site, layer: int, change: Change) -> Iterator[None]:
    """`through` for one expert, and for the router's choice: at the one module that answers for all experts."""
    experts, block, shape = architecture.require_experts(layer), architecture.block(layer), list[torch.Size]()
    number = site.expert if isinstance(site.expert, int) else 0
    if not 0 <= number < len(experts):
        raise IndexError(f"expert {number}: layer {layer} has experts 0 to {len(experts) - 1}")
    choices: list[tuple[Choice, bool]] = []

    def note(state: Tensor) -> None:
        shape[:] = [state.shape[:2]]

    def shown(at_tokens: Tensor) -> Tensor | None:
        new = change(at_tokens.view(*shape[0], -1))
        return None if new is None else new.reshape(at_tokens.shape)

    def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        states, chosen, weights = args
        choice = experts.called(states, chosen, weights)
        if site.name == "router":
            new = shown(choice.all_weights(len(experts)))
            if new is None:
                return None
            everyone = torch.arange(len(experts), device=chosen.device).expand(new.shape)
            experts.called(states, everyone, new)
            return (states, everyone, new), kwargs
        changed = False
        if site.name == "coefficients":
            answer = experts.answer(choice, number)
            new = shown(answer.coefficients * choice.asked(number))
            if new is not None:
                answer.coefficients, changed = new, True
        choices[:] = [(choice, changed)]
        return None

    def leave(output: Tensor) -> Tensor | None:
        if not choices:
            return None
        choice, changed = choices.pop()
        if site.name == "ffn":
            new = shown(experts.now(choice, number) * choice.asked(number))
            if new is not None:
                experts.answer(choice, number).output, changed = new, True
        return experts.corrected(choice, number, output) if changed else None

    with ExitStack() as stack:
        stack.callback(setattr, experts, "choice", None)  # nothing of a forward is kept
        stack.enter_context(state_entering(block, note))
        stack.enter_context(entering(experts.module, enter))
        stack.enter_context(leaving(experts.module, leave))
        yield


def _module(architecture: Architecture, site: Site, layer: int | None) -> nn.Module:
    """The module whose input or output a site is."""
    name = site.name
    if layer is None:
        return architecture.embeddings if name == "embeddings" else architecture.head
    if name in ("residual_before", "block"):
        return architecture.block(layer)
    if site.expert == "shared":
        return architecture.shared_expert(layer)[2]
    if name == "ffn":
        return architecture.whole_ffn(layer)
    if name == "coefficients":
        return architecture.values(layer)
    if name == "cross_attention":
        return architecture.cross_attention(layer)
    return architecture.attention_output(layer) if name == "heads" else architecture.attention(layer)


# -- hooks


@contextmanager
def entering(
    module: nn.Module,
    change: Callable[[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]] | None],
    first: bool = False,
) -> Iterator[None]:
    """Inside the block a function sees what a module is called with, arguments by position and by name.

    What it returns stands in their place, None leaves them as they are. With `first` it comes before those that are
    open already.
    """

    def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return change(args, kwargs)

    try:  # from before it is registered: an interruption may come at any time
        module.register_forward_pre_hook(hook, prepend=first, with_kwargs=True)
        yield
    finally:
        _remove_from(module, {number for number, other in module._forward_pre_hooks.items() if other is hook})


@contextmanager
def leaving(module: nn.Module, change: Callable[[Any], Any]) -> Iterator[None]:
    """Inside the block a function sees what a module returns; what it returns stands in its place, but None."""

    def hook(_module: nn.Module, _args: Any, output: Any) -> Any:
        return change(output)

    try:
        module.register_forward_hook(hook)
        yield
    finally:
        _remove_from(module, {number for number, other in module._forward_hooks.items() if other is hook})


def next_hook() -> int:
    """The number that the next hook gets, on whichever module."""
    return RemovableHandle.next_id


def remove_hooks(model: nn.Module, first: int, end: int | None = None) -> None:
    """Takes what is hooked onto a model's parts under the numbers from `first` to before `end`, or all later ones."""
    for module in model.modules():
        numbers = {*module._forward_pre_hooks, *module._forward_hooks}
        _remove_from(module, {number for number in numbers if first <= number and (end is None or number < end)})


def _remove_from(module: nn.Module, numbers: Collection[int]) -> None:
    for number in numbers:
        for hooks in (
            module._forward_pre_hooks,
            module._forward_hooks,
            module._forward_pre_hooks_with_kwargs,
            module._forward_hooks_with_kwargs,
        ):
            hooks.pop(number, None)


def looked_into(module: nn.Module) -> bool:
    """Whether anything is hooked onto a module or a part of it."""
    return any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """A module's input state, which transformers passes by position or by name."""
    return args[0] if args else kwargs["hidden_states"]


def _with_first(args: tuple[Any, ...], kwargs: dict[str, Any], state: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call's arguments with another input state."""
    return ((state, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": state})


@contextmanager
def state_entering(module: nn.Module, change: Change, first: bool = False) -> Iterator[None]:
    """Inside the block a function sees the state that enters a module (a block), and may put another in its place.

    What records and starts forwards comes `first`: an intervention at ``residual_before`` then acts in a partial
    forward from this layer as it does in a full one.
    """

    def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        new = change(_first(args, kwargs))
        return None if new is None else _with_first(args, kwargs, new)

    with entering(module, enter, first):
        yield


# -- blocks that do not run


@contextmanager
def skipped(blocks: Iterable[nn.Module], tuples: bool) -> Iterator[None]:
    """Inside the ``with`` block some transformer blocks hand their input on; what is open on them does not act.

    `tuples` says whether this model's blocks return their state in a tuple.
    """
    with ExitStack() as stack:
        for block in blocks:
            stack.enter_context(running(block, _HandOn(tuples)))
        yield


@contextmanager
def running(block: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Inside the ``with`` block something else runs where a block's forward would."""
    previous = block.__dict__.get("forward")  # accelerate, for one, has put its own there
    try:
        block.forward = forward
        yield
    finally:
        if previous is None:
            block.__dict__.pop("forward", None)
        else:
            block.forward = previous


@dataclass(frozen=True)
class _HandOn:
    """The forward of a block that is skipped."""

    tuples: bool

    def __call__(self, hidden_states: Tensor, *_args: Any, **_kwargs: Any) -> Any:
        return (hidden_states, None) if self.tuples else hidden_states
