import pytest
import tiny
import torch
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.climbing import Climb
from corrigenda.forward.interventions import Read, intervene
from corrigenda.forward.recording import record
from corrigenda.models.sites import Site

HEAD = [5, 9, 11, 6]
ROWS = [[*HEAD, 7, 8], [*HEAD, 7, 9, 10], [12, 13], [*HEAD, 4], [14, 5, 9, 11, 6]]
AT = [5, 6, 1, 4, 4]
WHICH = [1, 2]


def whole(lm: LanguageModel, site: Site, row: int) -> Tensor:
    """By a plain forward of one row by itself."""
    with intervene(lm, site, Read(), torch.tensor([AT[row]])) as seen:
        lm.model(input_ids=torch.tensor([ROWS[row]]))
    return seen.value[0].detach()


def write(lm: LanguageModel, layer: int) -> None:
    values = lm.memory(layer).values
    draw = torch.Generator().manual_seed(layer)
    lm.memory(layer).add_to_values(0.5 * values.std() * torch.randn(values.shape, generator=draw))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("family", tiny.CONFIGS)
def test_each_look_is_a_whole_forward(family: str) -> None:
    lm = tiny.build(family)
    climb = Climb(lm, lm.batch(ROWS), torch.tensor(AT))
    for layer, top in ((0, 2), (1, 2), (1, 1), (3, 3)):
        inside, beyond = Site("coefficients", layer), Site("ffn", top)
        found, further = climb.look(layer, beyond, torch.tensor(WHICH))
        for row in range(len(ROWS)):
            torch.testing.assert_close(found[row], whole(lm, inside, row), rtol=1e-3, atol=1e-4)
        for place, row in enumerate(WHICH):
            torch.testing.assert_close(further[place], whole(lm, beyond, row), rtol=1e-3, atol=1e-4)
        write(lm, layer)  # what it will be found with from above


def test_what_has_been_reached_does_not_run_again(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    climb = Climb(lm, lm.batch(ROWS), torch.tensor(AT))
    run: list[tuple[int, int]] = []  # of each layer how many rows
    for number, block in enumerate(lm.architecture.blocks):
        hook = lambda _m, args, _o, number=number: run.append((number, len(args[0])))  # noqa: E731
        block.mlp.register_forward_hook(hook)
    shared = 1  # HEAD, with all that is written by now
    rows = len(ROWS)
    climb.look(1, Site("block", 2), torch.tensor(WHICH))
    assert [one for one in run if one[1] != shared] == [(0, rows), (1, rows), (2, len(WHICH))]
    assert [number for number, n in run if n == shared] == [0, 1, 2]
    run.clear()
    climb.look(2, Site("block", 2), torch.tensor([], dtype=torch.long))
    assert [one for one in run if one[1] != shared] == [(1, rows), (2, rows)]
    with pytest.raises(ValueError, match="from layer 2 one climbs to layers above it, not to 1 and then 3"):
        climb.look(1, Site("block", 3), torch.tensor(WHICH))


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_a_recording_that_ends_with_a_layer(family: str) -> None:
    lm = tiny.build(family)
    batch = lm.batch(ROWS)
    part, all_layers = record(lm, batch, [1], until=1), record(lm, batch, [1])
    assert (len(part.cache), len(all_layers.cache), part.logits) == (2, tiny.DEPTH, None)
    for left, right in zip(part.cache, all_layers.cache, strict=False):
        assert torch.equal(left[0], right[0])
        assert torch.equal(left[1], right[1])
    assert torch.equal(part.states[1], all_layers.states[1])
