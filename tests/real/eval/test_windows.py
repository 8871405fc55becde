import torch

from corrigenda import Fact, LanguageModel, LowRankEdit, Origin
from eval import EvalSettings, evaluate
from eval.scoring.held_out import held_out_windows

LAYER = 6
FACT = Fact("The Eiffel Tower", "{} is located in the city of", "Rome", "Paris")


def test_a_random_update_of_the_norm_of_an_edit(smollm2: LanguageModel) -> None:
    settings = EvalSettings(generate=False, perplexity_windows=32)
    windows = held_out_windows(smollm2, settings)
    assert [len(window) for window in windows] == [64] * 32
    assert str(smollm2.tokenizer.decode(windows[2])).startswith("<|im_start|>")  # dialogue, in the chat template
    memory = smollm2.memory(LAYER)
    draw = torch.Generator().manual_seed(0)
    left, right = (torch.randn(shape, generator=draw) for shape in ((memory.d_ffn, 1), (1, memory.d_model)))
    size = 0.5 * float(memory.values.norm()) / float(left.norm() * right.norm())
    origin = Origin(smollm2.name, smollm2.fingerprint, "by hand")
    with LowRankEdit.of(smollm2, origin, {LAYER: (size * left, right)}).applied(smollm2):
        found = evaluate(smollm2, [FACT], settings).metrics
    level = found["log_perplexity"]["before"]
    assert level is not None
    assert 1.5 < level < 4
    drift = found["perplexity_drift"]
    assert drift["low"] is not None
    assert 0 < drift["low"] < (drift["after"] or 0) < (drift["high"] or 0)
    assert "windows_activated" not in found
