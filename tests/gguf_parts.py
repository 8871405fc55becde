"""GGUF files of tiny models, written as llama.cpp's converter writes them."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

from corrigenda import LanguageModel


def write_gguf(
    path: Path,
    lm: LanguageModel,
    without: str | None = None,
    kind: str = "F32",
    word: str = "w",
    more: Callable[[gguf.GGUFWriter], None] | None = None,
) -> Path:
    """A Llama model as llama.cpp's converter writes it, with a byte-level tokenizer of its own.

    `without` names a tensor to leave out; matrices whose rows are whole blocks of 32 numbers are of `kind`. Tokens that
    no text has are `word` and a number ("\u0120w" is " w" as BPE writes it). `more` writes what else there shall be.
    """
    config = lm.model.config
    tokens = ["<pad>", "<s>", "</s>", "<unk>", "t", "h", "th"]
    tokens += [f"{word}{i}" for i in range(len(tokens), config.vocab_size)]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * 4 + [gguf.TokenType.NORMAL] * (len(tokens) - 4))
    writer.add_token_merges(["t h"])
    writer.add_pad_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(3)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in lm.model.state_dict().items():
        if name == without:
            continue
        array = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:  # llama.cpp rotates neighbours, transformers rotates halves
            halves = array.reshape(-1, 2, config.head_dim // 2, config.hidden_size)
            array = halves.swapaxes(1, 2).reshape(array.shape)
        array, called = np.ascontiguousarray(array), names.get_name(name, (".weight",))
        if kind != "F32" and array.ndim == 2 and array.shape[1] % 32 == 0:
            blocks = gguf.quants.quantize(array, gguf.GGMLQuantizationType[kind])
            writer.add_tensor(called, blocks, raw_dtype=gguf.GGMLQuantizationType[kind])
        else:
            writer.add_tensor(called, array)
    if more is not None:
        more(writer)
    write(writer)
    return path


def write(writer: gguf.GGUFWriter) -> None:
    """Writes the file of what was added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
