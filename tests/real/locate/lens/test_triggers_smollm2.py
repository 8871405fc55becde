from pathlib import Path

import pytest
import torch

from corrigenda import LanguageModel
from corrigenda.moments.text import Text
from locate.lens.sensitivity import sensitivity
from locate.lens.triggers import trigger_examples

SENTENCES = """The Eiffel Tower stands in Paris, the capital of France, and was finished in 1889.
Water boils at one hundred degrees and freezes at zero; the sea freezes a little below that.
She opened the door, looked around the empty room, and asked who had left the lights on all night.
In the year 1969 two men walked on the Moon while a third one circled above them and waited.
If a number is divisible by six, it is divisible by two and by three, and the other way round.
The river rises in the mountains, runs through four countries, and ends in the Black Sea.
"""


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Text:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "sentences.txt").write_text(SENTENCES)
    return Text(source=str(tmp_path / "sentences.txt"), tokens=96, length=16)


def test_all_keys_of_the_real_model(smollm2: LanguageModel, text: Text) -> None:
    found = trigger_examples(smollm2, text, t=3)
    assert found.signed
    assert found.coefficients.shape == (30, 1536, 3)
    layer = 12
    rows = []
    for ids in text.sequences(smollm2):
        with smollm2.memory(layer).capture() as seen, torch.no_grad():
            smollm2.model(input_ids=torch.tensor([ids], device=smollm2.device))
        rows.append(seen.coefficients[0, 1:-1].cpu())
    every = torch.cat(rows)
    expected = every.abs().sort(dim=0, descending=True).values[:3].T
    torch.testing.assert_close(found.coefficients[layer].abs(), expected, atol=1e-4, rtol=1e-3)
    first = found.examples(smollm2, layer, 7)[0]
    assert SENTENCES.replace("\n", " ").find(first.prefix.replace("\n", " ").strip()) >= 0
    changed = sensitivity(smollm2, found, neurons=2, top=1)
    assert changed.changes.shape == (30, 2, 1, 3)
