"""llama.cpp itself, with an adapter or a file that was written here, says what the edited model says."""

from pathlib import Path

import tiny
import torch
import xllamacpp as llama_cpp
from edits_parts import low_rank, values
from gguf_parts import write_gguf

from corrigenda import LanguageModel, load

TOKENS = [1, 5, 9, 12, 7]


def theirs(model: Path, adapter: Path | None) -> torch.Tensor:
    """The log-probabilities of all tokens after `TOKENS`, by llama.cpp."""
    settings = llama_cpp.CommonParams()
    settings.model.path, settings.n_ctx, settings.n_parallel = str(model), 64, 1
    if adapter is not None:
        lora = llama_cpp.CommonAdapterLoraInfo()
        lora.path, lora.scale = str(adapter), 1.0
        settings.lora_adapters = [lora]
    asked = {"prompt": TOKENS, "n_predict": 1, "n_probs": 1000, "temperature": 0}
    said = llama_cpp.Server(settings).handle_completions(asked)
    after = said["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    return torch.tensor([token["logprob"] for token in sorted(after, key=lambda token: token["id"])])


def ours(lm: LanguageModel) -> torch.Tensor:
    with torch.no_grad():
        return lm.model(input_ids=torch.tensor([TOKENS])).logits[0, -1].log_softmax(0)


def test_llama_cpp_says_what_the_edited_model_says(tmp_path: Path) -> None:
    """With the adapter beside the model's file, and of a file with the edit in it."""
    lm = load(write_gguf(tmp_path / "tiny.gguf", tiny.build("llama")), device="cpu")
    edits = [low_rank(lm, 0, {1: 1, 2: 3}), values(lm, 5)]  # of layers with ranks of their own
    edits[0].to_gguf_adapter(tmp_path / "adapter", edits[1])
    edits[0].to_gguf(tmp_path / "edited.gguf", edits[1])
    plain = ours(lm)
    with edits[0].applied(lm), edits[1].applied(lm):
        edited = ours(lm)
    assert float((edited - plain).abs().max()) > 0.5
    tried = {
        "untouched": (tmp_path / "tiny.gguf", None, plain),
        "adapter": (tmp_path / "tiny.gguf", tmp_path / "adapter" / "adapter.gguf", edited),
        "file": (tmp_path / "edited.gguf", None, edited),
    }
    # llama.cpp keeps keys and values of attention in float16: 2^-11 of each, times a few layers.
    for what, (model, adapter, expected) in tried.items():
        off = float((theirs(model, adapter) - expected).abs().max())
        assert off <= 5e-3, what
