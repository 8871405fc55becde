import contextlib
from collections.abc import Callable
from pathlib import Path

import by_hooks
import pytest
import tiny
import torch
from interventions_parts import site
from malformed_parts import refused
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from corrigenda import LanguageModel
from corrigenda.errors import UnsupportedModelError
from corrigenda.forward.interventions import Read, intervene
from corrigenda.models.sites import SITES, Site, entering, looked_into, skipped, through

ROOT = Path(__file__).resolve().parents[4]
IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16]])
LAYER = 2
# Written down here once more: where each family's attention ends in a matrix, as its module's name in the block.
PROJECTIONS = {
    "bert": "attention.output.dense",
    "bloom": "self_attention.dense",
    "falcon": "self_attention.dense",
    "gpt2": "attn.c_proj",
    "gpt_neo": "attn.attention.out_proj",
    "gpt_neox": "attention.dense",
    "gptj": "attn.out_proj",
    "opt": "self_attn.out_proj",
    "phi": "self_attn.dense",
}


def plainly(lm: LanguageModel, module: nn.Module, of_input: bool) -> Tensor:
    """What a plain hook on a module sees in a forward of `IDS`, (batch * position, width)."""
    with (by_hooks.entering if of_input else by_hooks.leaving)(module) as found:
        lm.model(input_ids=IDS, use_cache=False)
    return found[0].detach().reshape(IDS.numel(), -1)


def modules(lm: LanguageModel, family: str) -> dict[str, tuple[nn.Module, bool]]:
    block = lm.architecture.blocks[LAYER]
    projection = block.get_submodule(PROJECTIONS.get(family, "self_attn.o_proj"))
    attention = lm.architecture.family.attention
    head = lm.model.cls if family == "bert" else lm.model.get_output_embeddings()
    return {
        "embeddings": (lm.model.get_input_embeddings(), False),
        "residual_before": (block, True),
        "attention": (block.get_submodule(attention), False),
        "heads": (projection, True),
        "coefficients": (block.get_submodule(lm.architecture.family.values), True),
        "ffn": (block.get_submodule(lm.architecture.family.values), False),
        "block": (block, False),
        "before_head": (head, True),
    }


@pytest.mark.parametrize("family", tiny.CONFIGS)
@torch.no_grad()
def test_reads_what_a_plain_hook_sees(family: str) -> None:
    lm = tiny.build(family)
    plain = modules(lm, family)
    assert set(plain) == set(SITES)
    for name in SITES:
        with intervene(lm, site(name), Read()) as seen:
            lm.model(input_ids=IDS, use_cache=False)
        assert seen.value.shape[:2] == IDS.shape
        assert seen.value.ndim == (4 if name == "heads" else 3)
        expected = plainly(lm, *plain[name])
        assert torch.equal(seen.value.reshape(expected.shape), expected), name


@pytest.mark.parametrize("family", tiny.CONFIGS)
@torch.no_grad()
def test_what_joins_the_residual_stream(family: str) -> None:
    """Where the family adds plainly, block = residual before + attention + FFN; one layer's end begins the next."""
    lm = tiny.build(family)
    names = ("residual_before", "attention", "ffn", "block")
    with contextlib.ExitStack() as stack:
        seen = [stack.enter_context(intervene(lm, site(name), Read())) for name in names]
        above = stack.enter_context(intervene(lm, Site("residual_before", LAYER + 1), Read()))
        lm.model(input_ids=IDS, use_cache=False)
    before, attention, ffn, after = (each.value for each in seen)
    assert torch.equal(above.value, after)
    if lm.architecture.adds_plainly:
        torch.testing.assert_close(before + attention + ffn, after, atol=1e-4, rtol=1e-4)


def test_no_such_site(lm: LanguageModel) -> None:
    refused(ValueError, r"unknown site 'mlp'; the sites are embeddings, residual_before", Site, "mlp", 1)
    refused(ValueError, "'ffn' needs a layer", Site, "ffn")
    refused(ValueError, "'embeddings' has no layer, got layer=3", Site, "embeddings", 3)
    with (
        pytest.raises(IndexError, match="layer 9: the model has 4 layers"),
        through(lm.architecture, Site("ffn", 9), lambda _: None),
    ):
        pass


def test_a_family_whose_heads_are_not_known() -> None:
    config = AutoConfig.for_model("seed_oss", **tiny._GROUPED)
    lm = LanguageModel(AutoModelForCausalLM.from_config(config), tiny.tokenizer(), "seed_oss")
    assert lm.architecture.family.attention_output == "self_attn.o_proj"
    with intervene(lm, site("heads"), Read()) as seen:
        lm.model(input_ids=IDS)
    assert seen.value.shape == (2, 6, 4, 8)

    class Wrapped(torch.nn.Module):
        def __init__(self, inside: torch.nn.Module) -> None:
            super().__init__()
            self.unlike_any_other = inside

        def forward(self, states: torch.Tensor) -> torch.Tensor:
            return self.unlike_any_other(states)

    for layer in lm.architecture.blocks:
        layer.self_attn.o_proj = Wrapped(layer.self_attn.o_proj)
    unknown = LanguageModel(lm.model, lm.tokenizer, "unknown")
    with (
        pytest.raises(UnsupportedModelError, match=r"output projection.*attention_output"),
        intervene(unknown, site("heads"), Read()),
    ):
        pass
    unknown.model.config.num_attention_heads = 5
    unknown.architecture.family = lm.architecture.family
    for layer in lm.architecture.blocks:
        layer.self_attn.o_proj = layer.self_attn.o_proj.unlike_any_other
    refused(UnsupportedModelError, "num_attention_heads=5", unknown.architecture.n_heads, 0)


def test_who_comes_first(lm: LanguageModel) -> None:
    block = lm.architecture.block(1)
    order: list[str] = []

    def say(name: str) -> Callable[..., None]:
        return lambda *_: order.append(name)

    with entering(block, say("one")), entering(block, say("two")), entering(block, say("first"), first=True):
        assert looked_into(block)
        lm.model(input_ids=IDS)
    assert order == ["first", "one", "two"]
    assert not looked_into(block)


@pytest.mark.parametrize("family", ["llama", "gpt_neo", "opt"])
def test_skipped_blocks_hand_on_and_nothing_acts_there(family: str) -> None:
    lm = tiny.build(family)
    tuples = (
        isinstance(lm.architecture.blocks[0](torch.zeros(1, 1, tiny.WIDTH)), tuple) if family == "gpt_neo" else False
    )
    names = ["residual_before", "heads", "coefficients", "ffn", "block"]
    acted: list[str] = []
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(through(lm.architecture, site(name, 1), lambda _, name=name: acted.append(name)))
        enters = stack.enter_context(intervene(lm, Site("residual_before", 0), Read()))
        leaves = stack.enter_context(intervene(lm, Site("residual_before", 2), Read()))
        before_one = stack.enter_context(intervene(lm, Site("block", 0), Read()))
        with skipped([lm.architecture.blocks[1]], tuples):
            lm.model(input_ids=IDS, use_cache=False)
        assert acted == []
        assert torch.equal(leaves.value, before_one.value)
        assert not torch.equal(leaves.value, enters.value)
        lm.model(input_ids=IDS, use_cache=False)
        assert acted == names
    assert "forward" not in lm.architecture.blocks[1].__dict__


def test_one_place_puts_hooks_on_modules() -> None:
    found = [
        str(path.relative_to(ROOT))
        for package in ("corrigenda", "locate", "editing", "eval", "jobs", "hydra_plugins", "run.py")
        for path in ([ROOT / package] if package.endswith(".py") else sorted((ROOT / package).rglob("*.py")))
        if "register_forward" in path.read_text(encoding="utf-8")
    ]
    assert found == ["corrigenda/models/sites.py"]
