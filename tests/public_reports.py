"""What the tests after public reports share: tokenizers of the kinds that are in use, and models of any vocabulary."""

from collections.abc import Sequence
from typing import Any

import edits_parts
import tiny
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from corrigenda import Fact, LanguageModel, LowRankEdit
from corrigenda.moments.text import Text
from editing import Rome, ValueSettings

SPECIAL = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}
EIFFEL = Fact("the Eiffel tower", "{} is located in the city of", "Rome", "Paris")
DANIELLE = Fact("Danielle Darrieux", "the mother tongue of {} is", "English", "French")
IDS = torch.tensor([[5, 9, 20, 33, 7, 12]])


def model(family: str = "llama", scale: float = 3.0, **changes: Any) -> PreTrainedModel:
    """A random model of a family, with some of its sizes changed; always the same."""
    config = AutoConfig.for_model(family, **(tiny.CONFIGS[family] | changes))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = AutoModelForCausalLM.from_config(config)
        for name, parameter in made.named_parameters():
            if name.endswith("bias"):
                parameter.data.normal_(0, 0.1)
            elif parameter.ndim in (2, 3):
                parameter.data.mul_(scale)
    return made


def reading(tokenizer: PreTrainedTokenizerBase, **changes: Any) -> LanguageModel:
    """A small Llama with an embedding for each of a tokenizer's tokens."""
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 256} | changes
    return LanguageModel(model(**sizes), tokenizer, "tiny")


def wrapped(words: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def pieces(scheme: str, bos: bool = False) -> PreTrainedTokenizerFast:
    """SentencePiece's way: a space is the first sign of the word after it; `scheme` says what a text begins with."""
    vocabulary = [*("▁" + word for word in tiny.WORDS), *tiny.WORDS, "▁"]
    words = Tokenizer(models.WordLevel(SPECIAL | {w: 4 + i for i, w in enumerate(vocabulary)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    words.decoder = decoders.Metaspace(prepend_scheme=scheme)
    if bos:
        words.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return wrapped(words)


def bytes_in_pairs(texts: Sequence[str], splits: bool = True) -> PreTrainedTokenizerFast:
    """GPT-2's way: pairs of bytes that are frequent in some texts; without `splits` also over the borders of words."""
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splits)
    words.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    words.train_from_iterator(texts, trainer)
    return wrapped(words)


def rome(**changes: Any) -> Rome:
    """ROME as random models need it: no guard, few steps, little text."""
    settings: dict[str, Any] = {
        "layer": 1,
        "prefixes": ("", "red green . "),
        "value": ValueSettings(steps=8),
        "text": Text(tokens=512, length=16),
        "flag_norm": 1e9,
        "refuse_norm": 1e9,
    }
    return Rome(**(settings | changes))


def low_rank(lm: LanguageModel, ranks: dict[int, int], seed: int = 0) -> LowRankEdit:
    """Random updates of these ranks of some layers."""
    return edits_parts.low_rank(lm, seed, ranks)


@torch.no_grad()
def logits(some: torch.nn.Module) -> torch.Tensor:
    """What a model gives to a few tokens."""
    return some(input_ids=IDS).logits


@torch.no_grad()
def log_probs(lm: LanguageModel, ids: Sequence[int], begin: int) -> list[float]:
    """The log-probabilities of the tokens from a place on, by one plain forward of the whole row."""
    logs = lm.model(input_ids=torch.tensor([list(ids)])).logits[0].float().log_softmax(-1)
    return [float(logs[place - 1, ids[place]]) for place in range(begin, len(ids))]
