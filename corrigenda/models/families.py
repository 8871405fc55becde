"""Where a model family keeps its parts: one table entry a family.

Every other file asks for a part by what it *is* (the blocks, the value matrix) and never by a module's name.
To add a family, add one line to `FAMILIES`.
"""

from dataclasses import dataclass, replace

from transformers import PreTrainedModel


@dataclass(frozen=True)
class Mixture:
    """Dotted paths, from a block, to the parts of a mixture of experts.

    Attributes:
        ffn: the whole feed-forward network, whose output joins the residual stream.
        router: the module that chooses the experts.
        experts: the module that holds all experts' matrices and is called with the states, the chosen experts and their
            weights (transformers 5 keeps them fused, one parameter with the expert as its first dimension).
        shared: the expert that every token goes through, which is a plain FFN of its own; None where there is none.
    """

    ffn: str = "mlp"
    router: str = "mlp.gate"
    experts: str = "mlp.experts"
    shared: str | None = None


@dataclass(frozen=True)
class Family:
    """Dotted paths to a family's parts, from the model (`blocks`, `final_norm`) or from a block (the others).

    Attributes:
        blocks: the list of transformer blocks.
        keys: the FFN's first matrix; the "up" matrix U where the FFN is gated.
        values: the FFN's second matrix V: its input are the coefficients, its output is the FFN's output.
        attention: the module whose (first) output is what self-attention adds to the residual stream: the attention
            itself, or its last matrix where the attention module adds the residual by itself.
        attention_output: the attention's output projection, whose input are the heads' results side by side; None
            where that is not known, and then nothing can be asked of single heads.
        gate: the gate matrix G of a gated FFN. The same path as `keys` says that one fused matrix holds G, then U.
        final_norm: the norm before the unembedding, if there is one.
        head: a module between `final_norm` and the vocabulary that acts on each position alone (masked models),
            where the positions whose logits are wanted can be picked out before the large product.
        causal: whether a position sees only itself and earlier ones.
        adds_plainly: whether the FFN's output joins the residual stream as it is, and not through a norm or a factor.
        mixture: where the parts of a mixture of experts are, for those blocks that have one; the paths above are those
            of its other blocks.
        cross_attention: in an encoder-decoder, whose blocks are the decoder's, the module whose (first) output is what
            attention to the encoder's states adds to the residual stream.
        decoder_positions: in an encoder-decoder, the module that says what the decoder adds for the absolute positions;
            None where there are only relative ones.
    """

    blocks: str
    keys: str
    values: str
    attention: str
    attention_output: str | None = None
    gate: str | None = None
    final_norm: str | None = None
    head: str | None = None
    causal: bool = True
    adds_plainly: bool = True
    mixture: Mixture | None = None
    cross_attention: str | None = None
    decoder_positions: str | None = None


_LLAMA = Family(
    blocks="model.layers",
    keys="mlp.up_proj",
    gate="mlp.gate_proj",
    values="mlp.down_proj",
    attention="self_attn",
    attention_output="self_attn.o_proj",
    final_norm="model.norm",
)
_GPT2 = Family(
    blocks="transformer.h",
    keys="mlp.c_fc",
    values="mlp.c_proj",
    attention="attn",
    attention_output="attn.c_proj",
    final_norm="transformer.ln_f",
)

_T5 = Family(
    blocks="decoder.block",
    keys="layer.2.DenseReluDense.wi",
    values="layer.2.DenseReluDense.wo",
    attention="layer.0.SelfAttention",
    attention_output="layer.0.SelfAttention.o",
    final_norm="decoder.final_layer_norm",
    cross_attention="layer.1.EncDecAttention",
)
_BART = Family(
    blocks="model.decoder.layers",
    keys="fc1",
    values="fc2",
    attention="self_attn",
    attention_output="self_attn.out_proj",
    adds_plainly=False,
    cross_attention="encoder_attn",
    decoder_positions="model.decoder.embed_positions",
)
_MBART = replace(_BART, adds_plainly=True, final_norm="model.decoder.layer_norm")

_FUSED = replace(_LLAMA, keys="mlp.gate_up_proj", gate="mlp.gate_up_proj")
_NOT_PLAINLY = replace(_LLAMA, adds_plainly=False)

FAMILIES: dict[str, Family] = {
    "bart": _BART,
    "bert": Family(
        blocks="bert.encoder.layer",
        keys="intermediate.dense",
        values="output.dense",
        attention="attention.output.dense",
        attention_output="attention.output.dense",
        head="cls",
        causal=False,
        adds_plainly=False,
    ),
    "blenderbot": _MBART,
    "bloom": replace(
        _GPT2,
        keys="mlp.dense_h_to_4h",
        values="mlp.dense_4h_to_h",
        attention="self_attention.dense",
        attention_output="self_attention.dense",
    ),
    "cohere": _LLAMA,
    "cohere2": _LLAMA,
    "deepseek_v3": replace(_LLAMA, mixture=Mixture(shared="mlp.shared_experts")),
    "falcon": replace(
        _GPT2,
        keys="mlp.dense_h_to_4h",
        values="mlp.dense_4h_to_h",
        attention="self_attention",
        attention_output="self_attention.dense",
    ),
    "gemma": _LLAMA,
    "gemma2": _NOT_PLAINLY,
    "gemma3_text": _NOT_PLAINLY,
    "glm": _FUSED,
    "glm4": replace(_FUSED, adds_plainly=False),
    "glm4_moe": replace(_LLAMA, mixture=Mixture(shared="mlp.shared_experts")),
    "gpt2": _GPT2,
    "gpt_neo": replace(_GPT2, attention_output="attn.attention.out_proj"),
    "gpt_neox": Family(
        blocks="gpt_neox.layers",
        keys="mlp.dense_h_to_4h",
        values="mlp.dense_4h_to_h",
        attention="attention",
        attention_output="attention.dense",
        final_norm="gpt_neox.final_layer_norm",
    ),
    "gpt_oss": replace(_LLAMA, mixture=Mixture(router="mlp.router")),
    "gptj": replace(_GPT2, keys="mlp.fc_in", values="mlp.fc_out", attention_output="attn.out_proj"),
    "granite": _NOT_PLAINLY,  # no norm, but a factor (residual_multiplier)
    "llama": _LLAMA,
    "marian": _BART,
    "mbart": _MBART,
    "ministral": _LLAMA,
    "ministral3": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": replace(_LLAMA, mixture=Mixture()),
    "mt5": _T5,
    "olmo": _LLAMA,
    "olmo2": _NOT_PLAINLY,
    "olmo3": _NOT_PLAINLY,
    "olmoe": replace(_LLAMA, mixture=Mixture()),
    "opt": Family(
        blocks="model.decoder.layers",
        keys="fc1",
        values="fc2",
        attention="self_attn",
        attention_output="self_attn.out_proj",
        final_norm="model.decoder.final_layer_norm",
    ),
    "pegasus": _MBART,
    "phi": replace(
        _LLAMA,
        keys="mlp.fc1",
        gate=None,
        values="mlp.fc2",
        attention_output="self_attn.dense",
        final_norm="model.final_layernorm",
    ),
    "phi3": _FUSED,
    "qwen2": _LLAMA,
    "qwen2_moe": replace(_LLAMA, mixture=Mixture(shared="mlp.shared_expert")),
    "qwen3": _LLAMA,
    "qwen3_moe": replace(_LLAMA, mixture=Mixture()),
    "smollm3": _LLAMA,
    "stablelm": _LLAMA,
    "starcoder2": replace(_LLAMA, keys="mlp.c_fc", gate=None, values="mlp.c_proj"),
    "t5": _T5,
    "umt5": _T5,
}
"""Families by transformers' `config.model_type`."""


def family_of(model: PreTrainedModel) -> Family | None:
    """The table's entry for a model; None for a family that is not in the table."""
    family = FAMILIES.get(model.config.model_type)
    if family is _T5 and getattr(model.config, "is_gated_act", False):  # T5 1.1, Flan-T5: the same type
        return replace(_T5, keys="layer.2.DenseReluDense.wi_1", gate="layer.2.DenseReluDense.wi_0")
    return family


def name_of(model: PreTrainedModel) -> str:
    """What error messages call a model."""
    return f"{type(model).__name__} (model_type '{model.config.model_type}')"


def has_encoder(model: PreTrainedModel) -> bool:
    """Whether an encoder reads a model's prompts, and a decoder answers (`corrigenda.models.encoder_decoder`)."""
    return bool(getattr(model.config, "is_encoder_decoder", False))


def unknown_encoder_decoder(named: str, model_type: str) -> str:
    """The message for an encoder-decoder that is not in the table."""
    known = [name for name, family in FAMILIES.items() if family in (_T5, _BART, _MBART)]
    return (
        f"{named} is an encoder-decoder of a family that is not in the table (model_type {model_type!r}); known are "
        f"{', '.join(sorted(known))}; give its decoder's paths as a `Family` (load(..., family=Family(...)))"
    )
