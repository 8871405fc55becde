import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.moments.text import Text
from editing.memory_based.wise.unrelated import Unrelated, unrelated_coefficients
from locate.lens.jacobian import JacobianSettings, jacobian_lens
from locate.lens.triggers import trigger_examples
from locate.lens.values import read_values

TEXT = Text(tokens=40, length=10)


def jacobians(lm: LanguageModel) -> list[Tensor]:
    return [jacobian_lens(lm, JacobianSettings(samples=2, text=TEXT)).matrices]


def triggers(lm: LanguageModel) -> list[Tensor]:
    found = trigger_examples(lm, TEXT, 3)
    return [found.coefficients, found.prefixes, found.tokens]


def values(lm: LanguageModel) -> list[Tensor]:
    found = read_values(lm, k=2)
    return [found.ids, found.scores, found.probabilities]


def unrelated(lm: LanguageModel) -> list[Tensor]:
    kinds = unrelated_coefficients(lm, 1, Unrelated(text=TEXT))
    return [tensor for found in kinds.values() for tensor in found]


@pytest.mark.parametrize("kept", [jacobians, triggers, values, unrelated])
def test_a_damaged_file_is_said_and_made_again(
    lm: LanguageModel, kept: Callable[[LanguageModel], list[Tensor]], tmp_path: Path
) -> None:
    whole = kept(lm)
    [folder] = [one for one in (tmp_path / "cache").iterdir() if one.name != "texts"]
    path = sorted(folder.iterdir())[0]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.warns(UserWarning, match=rf"{path.name} is damaged \(its checksum is another\); .* again"):
        again = kept(lm)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_disk = kept(lm)
    for found in (again, from_disk):
        assert all(torch.equal(one, other) for one, other in zip(found, whole, strict=True))
