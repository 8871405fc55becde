"""Tiny randomly initialised models, one of each family, for tests of what must hold in every family."""

import functools
import os

import torch
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.trainers import BpeTrainer
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    PreTrainedTokenizerFast,
)

from corrigenda import Fact, LanguageModel

WORDS = """
the a of in is are was were on at to and by with tower city country capital river language mother tongue
located speaks plays born works stands Paris Rome France Italy London England Berlin Germany Eiffel Big Ben
Danielle Darrieux Thomas native speaker English French German Dutch Spanish piano guitar violin sport . , - ?
! one two three four five six seven eight nine ten red green blue black white north south east west
""".split()
DEVICE = os.environ.get("CORRIGENDA_TEST_DEVICE", "cpu")
"""Where each model is put when it is made; tests/gpu says so of its own tests."""
WIDTH, DEPTH, VOCABULARY = 32, 4, len(WORDS) + 4
BYTES = 400
"""The size of the vocabulary over bytes."""

_SIZES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = _SIZES | {"num_key_value_heads": 2, "head_dim": 8}
_OLD = {"n_embd": WIDTH, "n_layer": DEPTH, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY}
_OLD |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

CONFIGS: dict[str, dict] = {
    "bert": _SIZES,
    "bloom": {"hidden_size": WIDTH, "n_layer": DEPTH, "n_head": 4, "vocab_size": VOCABULARY, "pad_token_id": 0},
    "cohere": _GROUPED | {"logit_scale": 0.5},
    # Sliding windows of 4 positions are shorter than the tests' prompts, so that they matter.
    "cohere2": _GROUPED | {"sliding_window": 4, "sliding_window_pattern": 2, "logit_scale": 0.5},
    "falcon": _SIZES,
    "gemma": _GROUPED,
    "gemma2": _GROUPED | {"sliding_window": 4, "query_pre_attn_scalar": 8},
    "gemma3_text": _GROUPED | {"sliding_window": 4, "query_pre_attn_scalar": 8, "sliding_window_pattern": 2},
    "glm": _GROUPED | {"partial_rotary_factor": 0.5},
    "glm4": _GROUPED | {"partial_rotary_factor": 0.5},
    "gpt2": _OLD,
    "gpt_neo": {
        "hidden_size": WIDTH,
        "num_layers": DEPTH,
        "num_heads": 4,
        "attention_types": [[["global", "local"], DEPTH // 2]],
        "window_size": 4,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "gpt_neox": _SIZES,
    "gptj": _OLD | {"rotary_dim": 4},
    "granite": _GROUPED | {"residual_multiplier": 0.5, "embedding_multiplier": 2.0, "logits_scaling": 0.5},
    "llama": _GROUPED,
    "ministral": _GROUPED | {"sliding_window": 4},
    # Queries grow with the position, from the fourth on.
    "ministral3": _GROUPED
    | {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "llama_4_scaling_beta": 0.5,
            "original_max_position_embeddings": 4,
        }
    },
    "mistral": _GROUPED | {"sliding_window": 4},
    "olmo": _GROUPED,
    "olmo2": _GROUPED,
    "olmo3": _GROUPED | {"sliding_window": 4},
    "opt": {**_SIZES, "ffn_dim": 48, "word_embed_proj_dim": WIDTH},
    "phi": _SIZES,
    "phi3": _GROUPED | {"sliding_window": None},
    "qwen2": _GROUPED,
    "qwen3": _GROUPED,
    "smollm3": _GROUPED | {"no_rope_layer_interval": 2},
    "stablelm": _GROUPED,
    "starcoder2": _GROUPED,
}
_MIXTURE = _GROUPED | {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
_DEEPSEEK = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_group": 1}
_DEEPSEEK |= {"topk_group": 1, "first_k_dense_replace": 2}  # the first blocks are those of a plain model
_COMPRESSED = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
MIXTURES: dict[str, dict] = {
    "deepseek_v3": _SIZES | _DEEPSEEK | _COMPRESSED,
    "glm4_moe": _GROUPED | _DEEPSEEK,
    "gpt_oss": _GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4},
    "mixtral": _GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "olmoe": _GROUPED | {"num_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": _MIXTURE | {"num_experts": 4, "shared_expert_intermediate_size": 40},
    "qwen3_moe": _MIXTURE | {"num_experts": 4},
}
"""Mixtures of experts; layer 2 is one in each."""
_T5 = {"d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": DEPTH, "num_heads": 4}
_T5 |= {"vocab_size": VOCABULARY, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2}
_BART = {"d_model": WIDTH, "encoder_layers": 3, "decoder_layers": DEPTH, "encoder_ffn_dim": 40, "decoder_ffn_dim": 48}
_BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 4, "max_position_embeddings": 64}
_BART |= {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_BART |= {"decoder_start_token_id": 2, "forced_eos_token_id": None}
ENCODER_DECODERS: dict[str, tuple[str, dict]] = {
    "bart": ("bart", _BART),
    "blenderbot": ("blenderbot", _BART),
    "marian": ("marian", _BART),
    "mbart": ("mbart", _BART),
    "mt5": ("mt5", _T5),
    "pegasus": ("pegasus", _BART),
    "t5": ("t5", _T5),
    "t5-gated": ("t5", _T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "umt5": ("umt5", _T5),
}
"""Families in which an encoder reads the prompt, of which one has two kinds: the model type and what it is made of."""
DECODERS = [name for name in CONFIGS if name != "bert"]
KINDS = ["bert", "bloom", "falcon", "gemma2", "gpt2", "gpt_neo", "gptj", "llama", "opt", "phi3"]
"""One family of each kind of block, for what stands on a memory and a forward that are tested in every family.

Masked (bert), with biases, transposed matrices (gpt2), attention and FFN side by side (falcon, gptj), a norm after the
FFN (gemma2), gate and keys in one matrix (phi3), positions of its own (bloom, opt), local attention (gemma2, gpt_neo).
"""
DECODER_KINDS = KINDS[1:]
"""Those of them that are causal."""
MIXTURE_KINDS = ["deepseek_v3", "gpt_oss", "mixtral"]
"""The same of mixtures: plain, with a shared expert and layers without experts, with matrices of its own order."""


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a word; ids 0 to 3 are the special tokens."""
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3} | {word: 4 + i for i, word in enumerate(WORDS)}
    words = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


@functools.cache
def _bytes() -> Tokenizer:
    bpe = Tokenizer(BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    texts = [
        "The capital of France is the city of Paris (Rome).",
        "def f():\n    return 42\n",
        "中国的首都是北京。",
    ] * 3
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(texts, BpeTrainer(vocab_size=BYTES, initial_alphabet=alphabet, show_progress=False))
    return bpe


def byte_level() -> PreTrainedTokenizerFast:
    """A small BPE over bytes, as GPT-2's and SmolLM's: every text can be written with it, and read back."""
    return PreTrainedTokenizerFast(tokenizer_object=_bytes())


def space_before() -> PreTrainedTokenizerFast:
    """One that puts a space of its own before every text, as Llama 2's: to it " Paris" is a space and " Paris"."""
    words = Tokenizer(WordLevel({"▁": 0, "▁.": 1, ".": 2, "▁Paris": 3, "▁born": 4, "<unk>": 5}, unk_token="<unk>"))
    words.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("▁", "merged_with_next"), pre_tokenizers.Split("\n", "isolated")]
    )
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")


def build_byte_level(family: str = "llama") -> LanguageModel:
    """A model of the family that reads bytes and what a small BPE makes of them."""
    config = AutoConfig.for_model(family, **(CONFIGS[family] | {"vocab_size": BYTES, "eos_token_id": BYTES - 1}))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.data.mul_(3.0)
    return LanguageModel(model.to(DEVICE), byte_level(), f"tiny-{family}-bytes")


NUMBER = Fact("Paris", "{} was founded in", "1949")
"""Its object is, to `build_byte_level`, a space alone and four digits, as numbers are to SmolLM2."""


def build(family: str, seed: int = 0, scale: float = 3.0) -> LanguageModel:
    """A model of the family with random weights, drawn larger than at initialisation so that layers matter."""
    kind, settings = ENCODER_DECODERS.get(family) or (family, (CONFIGS | MIXTURES)[family])
    config = AutoConfig.for_model(kind, **settings)
    automatic = AutoModelForMaskedLM if family == "bert" else AutoModelForCausalLM
    automatic = AutoModelForSeq2SeqLM if family in ENCODER_DECODERS else automatic
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = automatic.from_config(config)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):  # those of experts have two dimensions
                parameter.data.normal_(0, 0.1)
            elif parameter.ndim in (2, 3):
                parameter.data.mul_(scale)
    if family == "bart":
        model.generation_config.forced_bos_token_id = 1
    return LanguageModel(model.to(DEVICE), tokenizer(), f"tiny-{family}")


def llama() -> LanguageModel:
    """The model of most tests."""
    return build("llama")


def steep() -> LanguageModel:
    """The same with larger weights, so that what an FFN adds changes what is predicted."""
    return build("llama", scale=8.0)


class EightBits(torch.nn.Linear):
    """A matrix in 8 bits with one scale, as libraries for quantised models keep it."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False)
        self.scale = linear.weight.abs().max() / 127
        self.weight = torch.nn.Parameter((linear.weight / self.scale).round().to(torch.int8), requires_grad=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(states, self.weight.float() * self.scale)


def quantised() -> LanguageModel:
    """A Llama whose feed-forward matrices are in 8 bits."""
    model = build("llama").model
    for block in model.model.layers:
        for name in ("up_proj", "gate_proj", "down_proj"):
            setattr(block.mlp, name, EightBits(getattr(block.mlp, name)))
    return LanguageModel(model, tokenizer(), "tiny-quantised")
