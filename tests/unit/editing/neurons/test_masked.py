import tiny
import torch

from corrigenda import Fact
from editing import UpdateNeurons
from locate import Neurons


def test_a_statement_without_a_mask_is_asked_at_its_end() -> None:
    lm = tiny.build("bert")
    lm.tokenizer.mask_token = "?"
    bare = Fact("the Eiffel tower", "{} is located in the city of", "Rome", "Paris")
    masked = Fact("the Eiffel tower", "{} is located in the city of ?", "Rome", "Paris")
    editor = UpdateNeurons(find=Neurons(steps=2))
    found, expected = editor.edit(lm, [bare]), editor.edit(lm, [masked])
    assert found.origin.report == expected.origin.report
    assert set(found.factors) == set(expected.factors)
    for layer in found.factors:
        assert torch.equal(found.delta(layer), expected.delta(layer))
