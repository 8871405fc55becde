import dataclasses
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from by_hooks import coefficients
from editors_parts import LAYER, PLAYS, TONGUE, TOWER
from rome_parts import build
from torch import Tensor

from corrigenda import Edit, EditRefusedError, HopfieldEdit, LanguageModel
from corrigenda.edits.routed import activated
from corrigenda.forward.recording import forward_logits
from editing import Horen


def horen(**changes: Any) -> Horen:
    return Horen(**({"layer": LAYER, "steps": 3} | changes))


def query(lm: LanguageModel, prompt: str, count: int) -> Tensor:
    """The direction of the mean of the last `count` tokens' coefficients, in float64."""
    mean = coefficients(lm, LAYER, lm.tokens(prompt))[-count:].double().mean(0)
    return mean / mean.norm()


OTHERS = ["the Eiffel tower stands in the city of", "Danielle Darrieux speaks", "one two three", TOWER.statement]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_step_by_hand(family: str) -> None:
    """q' = (1 - alpha) q + alpha sum softmax(beta q k_j) k_j of length 1, over the last half of each prompt."""
    lm = build(family)
    edit = horen().edit(lm, [TOWER, TONGUE])
    n = len(lm.tokens(TOWER.statement))
    assert n % 2  # so that the half is rounded up
    own = query(lm, TOWER.statement, (n + 1) // 2)
    torch.testing.assert_close(edit.keys[0].double(), own, rtol=1e-4, atol=1e-6)
    keys, cosines = edit.keys.double(), []
    for prompt in OTHERS:
        q = query(lm, prompt, (len(lm.tokens(prompt)) + 1) // 2)
        weights = [float(torch.exp(5.0 * q @ key)) for key in keys]
        recalled = sum(weight / sum(weights) * key for weight, key in zip(weights, keys, strict=True))
        drawn = 0.6 * q + 0.4 * recalled
        cosines.append(max(float(drawn @ key / drawn.norm()) for key in keys))
    assert max(cosines) == cosines[-1]
    assert len({round(cosine, 3) for cosine in cosines}) == 4
    for place, cosine in enumerate(cosines):
        for threshold, meets in ((cosine - 1e-4, True), (cosine + 1e-4, False)):
            bound = dataclasses.replace(edit, alpha=0.4, beta=5.0, threshold=min(threshold, 1.0))
            with bound.applied(lm), activated(lm) as seen:
                forward_logits(lm, lm.batch([lm.tokens(prompt) for prompt in OTHERS]))
            if threshold <= 1:
                assert seen.rows[place] is meets


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_others_stay_to_the_bit(family: str) -> None:
    lm = build(family)
    batch = lm.batch([lm.tokens(prompt) for prompt in OTHERS])
    plain = forward_logits(lm, batch)
    edit = horen(threshold=0.9999).edit(lm, [TOWER])
    with edit.applied(lm):
        said = forward_logits(lm, batch)
    lengths = [len(lm.tokens(prompt)) for prompt in OTHERS]
    for row, n in enumerate(lengths[:3]):
        assert torch.equal(said[row, :n], plain[row, :n])
    n = lengths[3]
    assert not torch.equal(said[3, n - 1], plain[3, n - 1])
    assert torch.equal(said[3, : n - 1], plain[3, : n - 1])  # the value stands from the prompt's last token on


def test_a_value_is_learned_and_kept(tmp_path: Path) -> None:
    lm = build()
    edit = horen(steps=40).edit(lm, [TOWER])
    [report] = edit.origin.report
    assert report["loss"] == min(report["step_losses"]) < report["step_losses"][0] - 1
    edit.save(tmp_path)
    loaded = Edit.load(tmp_path)
    assert isinstance(loaded, HopfieldEdit)
    assert torch.equal(loaded.values, edit.values)
    later = horen().extend(lm, loaded, [PLAYS, dataclasses.replace(TOWER, target_new="London", id="later")])
    assert [fact.target_new for fact in later.state.facts] == ["guitar", "London"]
    torch.testing.assert_close(later.keys[1], edit.keys[0], rtol=1e-3, atol=1e-5)
    assert len(later.keys) == 2
    assert not torch.equal(later.values[1], edit.values[0])


def test_what_it_does_not_go_on_from() -> None:
    lm = build()
    first = horen().edit(lm, [TOWER])
    with pytest.raises(EditRefusedError, match=r"part=0\.5 and replace='onwards'"):
        horen(part=0.6).extend(lm, first, [TONGUE])


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"keys": torch.ones(1, 48)}, "length 1"),
        ({"values": torch.ones(2, tiny.WIDTH)}, "entries with keys"),
        ({"alpha": 1.5}, "alpha=1.5"),
        ({"replace": "here"}, "onwards"),
    ],
)
def test_malformed(changes: dict[str, Any], match: str) -> None:
    edit = horen(steps=1).edit(build(), [TOWER])
    with pytest.raises(ValueError, match=match):
        dataclasses.replace(edit, **changes)
