import dataclasses
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from editors_parts import FACTS, TONGUE, TOWER, bits, same_bits
from learned_parts import LAYERS, assert_same, build, by_hand, by_hooks, drawn

from corrigenda import EditRefusedError, LowRankEdit
from corrigenda.errors import DamagedFileError, UnsupportedModelError, WrongModelError
from editing.editor import prepare
from editing.learned import learned
from editing.learned.hypernetwork import Hypernetwork, SeenFact, TrainedNetwork, kept_network
from editing.learned.mend import Mend
from editing.locate_then_edit.answers import AnswerTokens, answer_tokens
from editing.shared.training_rows import target_rows

pytestmark = [pytest.mark.filterwarnings("ignore:mend. the edit disturbs"), pytest.mark.usefixtures("own_cache")]
MEND = Mend(layers=LAYERS, refuse_norm=1e9)


@pytest.mark.parametrize("family", ["llama", "gpt2"])  # gated; plain, with a transposed matrix
def test_the_edit_by_hand(family: str) -> None:
    lm = build(family)
    trained = drawn(lm, MEND)
    trained.save(kept_network(lm, "mend"))
    before = bits(lm)
    facts = [TOWER, TONGUE]
    edit = MEND.edit(lm, facts)
    assert same_bits(lm, before)
    assert isinstance(edit, LowRankEdit)
    expected = {layer: torch.zeros(lm.memory(layer).values.shape, dtype=torch.float64) for layer in LAYERS}
    ranks = dict.fromkeys(LAYERS, 0)
    for fact in facts:
        for place, (layer, (u, d)) in enumerate(by_hooks(lm, fact).items()):
            for token in range(1, len(u)):  # the first token is left out
                if not bool(d[token].any()):
                    continue
                pseudo_u, pseudo_d = by_hand(trained.network, place, u[token], d[token])
                expected[layer] -= trained.network.rate(place).item() * torch.outer(pseudo_u, pseudo_d)
                ranks[layer] += 1
    for layer in LAYERS:
        torch.testing.assert_close(edit.delta(layer).double(), expected[layer], rtol=1e-4, atol=1e-5)
    lengths = [len(target_rows(lm, fact)[0]) for fact in facts]
    assert ranks[1] == sum(lengths) - 4  # all but the first token of each, and the last, which predicts nothing
    assert ranks[3] == 4  # in the last layer those that predict a token of the target
    assert {layer: left.shape[1] for layer, (left, _) in edit.factors.items()} == ranks


def test_nothing_is_edited_without_a_network_of_this_model(tmp_path: Path) -> None:
    lm = build()
    for call_it in (lambda: MEND.edit(lm, FACTS[:1]), lambda: prepare(MEND, lm)):
        with pytest.raises(EditRefusedError, match=r"no network was trained for tiny-llama: .*train editor=mend"):
            call_it()
    path = tmp_path / "network.safetensors"
    drawn(lm, MEND).save(path)
    named = dataclasses.replace(MEND, network=str(path))
    prepare(named, lm)
    with pytest.raises(WrongModelError, match="trained on tiny-llama, whose weights are others"):
        named.edit(tiny.build("llama", seed=1), FACTS[:1])
    with pytest.raises(WrongModelError, match=r"trained for mend at layers \[1, 3\], and is asked for at layers \[1\]"):
        dataclasses.replace(named, layers=(1,)).edit(lm, FACTS[:1])
    with pytest.raises(WrongModelError, match="trained with end_token=true, and is asked for with end_token=false: "):
        dataclasses.replace(named, end_token=False).edit(lm, FACTS[:1])
    with pytest.raises(UnsupportedModelError, match="layer 1 of tiny-mixtral is a mixture"):
        MEND.edit(build("mixtral"), FACTS[:1])


def test_it_is_the_same_from_the_disk_and_damage_is_said(tmp_path: Path) -> None:
    lm = build()
    trained, path = drawn(lm, MEND), tmp_path / "network.safetensors"
    trained = dataclasses.replace(trained, made={"curve": [{"step": 0}]})
    trained.save(path)
    assert_same(TrainedNetwork.load(path, Hypernetwork), trained)
    with pytest.raises(FileNotFoundError, match="there is no network; train one"):
        TrainedNetwork.load(tmp_path / "none", Hypernetwork)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DamagedFileError, match=r"network\.safetensors is damaged, or no network"):
        TrainedNetwork.load(path, Hypernetwork)
    trained.network.mean[0] = torch.nan
    trained.save(path)
    with pytest.raises(DamagedFileError, match="mean is not finite"):
        TrainedNetwork.load(path, Hypernetwork)


def test_facts_that_it_was_trained_on_are_refused_by_name() -> None:
    lm = build()
    seen = (SeenFact("x", "the  eiffel TOWER"), SeenFact("plays", "nobody"))
    dataclasses.replace(drawn(lm, MEND), facts=seen).save(kept_network(lm, "mend"))
    with pytest.warns(UserWarning, match="is refused"):
        edit = MEND.edit(lm, FACTS)
    assert ["refused" in report for report in edit.origin.report] == [True, False, True]
    with pytest.raises(EditRefusedError, match=r"the subject \('the Eiffel tower'\) is among the 2 facts that mend"):
        MEND.edit(lm, [TOWER])


def test_gradients_of_zero_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a fact that a model in float16 is sure of already: they are smaller than it has numbers for."""
    lm = build()
    drawn(lm, MEND).save(kept_network(lm, "mend"))

    def vanished(*args: Any, **kwargs: Any) -> AnswerTokens:
        seen = answer_tokens(*args, **kwargs)
        return dataclasses.replace(seen, gradients={layer: 0 * one for layer, one in seen.gradients.items()})

    monkeypatch.setattr(learned, "answer_tokens", vanished)
    with pytest.raises(EditRefusedError, match="mend: all gradients at layer 1 are zero"):
        MEND.edit(lm, [TOWER])
