import pytest
import tiny

from corrigenda import LanguageModel
from locate.lens.promoters import directions, promoters
from locate.lens.words import UnknownTokenError, read_static


@pytest.mark.parametrize("family", tiny.DECODER_KINDS)
def test_against_the_whole_vocabulary(family: str) -> None:
    lm = tiny.build(family)
    words = ["piano", "violin"]
    ids = [lm.tokens(word)[0] for word in words]
    wanted = {}
    for layer in range(lm.n_layers):
        memory = lm.memory(layer)
        scores = read_static(lm, memory.values).double()
        above = (scores[:, ids].mean(1) - scores.mean(1)) / scores.std(1, unbiased=False)
        if memory.gates is None:
            above = above.clamp_min(0)
        wanted |= {(layer, number): float(value) for number, value in enumerate(above)}
    found = promoters(lm, words, n=5)
    best = sorted(wanted, key=lambda place: -abs(wanted[place]))[:5]
    assert [(each.layer, each.neuron) for each in found] == best
    for each in found:
        value = wanted[each.layer, each.neuron]
        assert each.score == pytest.approx(abs(value), rel=1e-3)
        assert each.direction == (1 if value >= 0 else -1)
    assert directions(found)[best[0]] == found[0].direction


def test_some_layers_only(lm: LanguageModel) -> None:
    assert {each.layer for each in promoters(lm, ["piano"], layers=[-1])} == {3}


def test_what_cannot_be_promoted(lm: LanguageModel) -> None:
    with pytest.raises(UnknownTokenError, match="2 tokens"):
        promoters(lm, ["Big Ben"])
    with pytest.raises(ValueError, match="list of one word"):
        promoters(lm, "piano")
    with pytest.raises(ValueError, match="a layer is named twice"):
        promoters(lm, ["piano"], layers=[3, -1])  # each of its values would be found twice
