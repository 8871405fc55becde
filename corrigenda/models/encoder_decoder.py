"""Encoder-decoders (T5, BART, ...) as models that read a row of tokens: the encoder's part, then the decoder's.

    prompt's tokens | the border, forced first tokens | the answer's tokens
    the encoder's   | the decoder's, from its start token on

`BORDER` is no token of the vocabulary but the number after its last one (`Parts.border`); there the decoder reads its
start token. It belongs to the prompt as its last token, and its logits are those of the answer's first token, as with
every other model. (BART's first token is fixed by its configuration, `forced_bos_token_id`; it then belongs to the
prompt, too.) The memories are the decoder's FFNs; at their sites positions are those of the row, and at the encoder's
nothing is there. So nothing can be asked of them at the subject's tokens, which only the encoder reads.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel, PreTrainedTokenizerBase

from corrigenda.errors import UnsupportedModelError
from corrigenda.models.families import Family, name_of
from corrigenda.models.sites import leaving
from corrigenda.prompts import ANSWER_BEGINS

_OWN = ("decoder_input_ids", "decoder_inputs_embeds", "encoder_outputs", "labels")
"""The arguments of a call that is an encoder-decoder's own, and no row."""


class Parts:
    """What takes a row apart and runs the encoder and the decoder on its parts.

    Made of a model, it stands in the place of the model's own `forward` and answers calls with rows; the other calls
    (those of transformers' own `generate`, say) go through to that.

    Args:
        model: an encoder-decoder.
        family: where its parts are.

    Attributes:
        border: the number that stands for the decoder's start token in a row.

    Raises:
        UnsupportedModelError: the configuration has no start token for the decoder.
    """

    def __init__(self, model: PreTrainedModel, family: Family) -> None:
        before = model.forward
        self._forward: Any = before._forward if isinstance(before, Parts) else before
        self._encoder = model.get_encoder()
        self._name = name_of(model)
        self._places = model.get_submodule(family.decoder_positions) if family.decoder_positions else None
        embedding: Any = model.get_input_embeddings()
        self.border = int(embedding.weight.shape[0])
        settings = (getattr(model, "generation_config", None), model.config)
        start, forced, pad = (
            next((found for one in settings if (found := getattr(one, name, None)) is not None), None)
            for name in ("decoder_start_token_id", "forced_bos_token_id", "pad_token_id")
        )
        if start is None:
            raise UnsupportedModelError(
                f"{self._name}: its configuration has no decoder_start_token_id, so it is not known how an answer "
                "begins; set model.config.decoder_start_token_id"
            )
        self._start, self._pad = int(start), int(pad or 0)
        self.begins = (self.border,) if forced is None else (self.border, int(forced))

    @property
    def beginning(self) -> tuple[int, ...]:
        """What an answer begins with, the decoder's start token first."""
        return (self._start, *self.begins[1:])

    def with_beginning(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
        """The same tokenizer, by which `prompts.encode` ends a prompt with what an answer begins with."""
        tokenizer = copy.copy(tokenizer)
        setattr(tokenizer, ANSWER_BEGINS, self.begins)
        return tokenizer

    def __call__(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **options: Any,
    ) -> Any:
        """A forward of rows; logits are (batch, position, vocabulary), those of the encoder's positions are nobody's.

        Raises:
            UnsupportedModelError: a row has no border: it is a text, which is neither a prompt nor an answer.
        """
        if input_ids is None or self.owns(options):
            return self._forward(
                input_ids=input_ids, attention_mask=attention_mask, past_key_values=past_key_values, **options
            )
        if isinstance(past_key_values, Encoded):
            return self._forward(
                attention_mask=past_key_values.mask,
                encoder_outputs=(past_key_values.states,),
                decoder_input_ids=input_ids.masked_fill(input_ids == self.border, self._start),
                decoder_attention_mask=attention_mask,
                past_key_values=past_key_values,
                **options,
            )
        at = self._borders(input_ids)
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        columns = torch.arange(input_ids.shape[1], device=input_ids.device)
        prompt, width = (columns < at) * real, int(at.max())
        answer = (columns >= at) * real
        mine = input_ids.masked_fill(answer == 0, self._pad).masked_fill(columns == at, self._start)
        with nullcontext() if self._places is None else leaving(self._places, _Shifted((columns - at).clamp(min=0))):
            return self._forward(
                input_ids=input_ids.masked_fill(prompt == 0, self._pad)[:, :width],
                attention_mask=prompt[:, :width],
                decoder_input_ids=mine,
                decoder_attention_mask=answer,
                **{**options, "use_cache": False},
            )

    @staticmethod
    def owns(call: Mapping[str, Any]) -> bool:
        """Whether a call, by its arguments' names, is an encoder-decoder's own, and no row."""
        return any(call.get(name) is not None for name in _OWN)

    @torch.no_grad()
    def encoded(self, rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor, Encoded]:
        """What a decoding starts with: the encoder reads the prompts, once.

        That is the decoder's first tokens, (n, position), and their mask; and the cache, with what the encoder said in
        it. Raises UnsupportedModelError: a row has no border; ValueError: their answers have begun, each with another
        number of tokens.
        """
        places = [int(self._borders(torch.tensor([list(row)]))) for row in rows]
        begun = {len(row) - place for row, place in zip(rows, places, strict=True)}
        if len(begun) != 1:
            raise ValueError(f"the answers of one batch have begun with {sorted(begun)} tokens; run them apart")
        ids = torch.full((len(rows), max(places)), self._pad)
        mask = torch.zeros_like(ids)
        for number, (row, place) in enumerate(zip(rows, places, strict=True)):
            ids[number, :place] = torch.tensor(list(row[:place]))
            mask[number, :place] = 1
        ids, mask = ids.to(device), mask.to(device)
        states = self._encoder(input_ids=ids, attention_mask=mask)[0]
        first = torch.tensor([list(row[place:]) for row, place in zip(rows, places, strict=True)], device=device)
        return first, torch.ones_like(first), Encoded(states, mask)

    def _borders(self, ids: Tensor) -> Tensor:
        """(batch, 1), where the decoder begins in each row."""
        found = ids == self.border
        if not bool(found.any(1).all()) or bool(found[:, 0].any()):
            raise UnsupportedModelError(
                f"{self._name} is an encoder-decoder: it answers prompts, and cannot be run on running text (second "
                "moments, sampled texts, perplexity) nor on an empty prompt; take a decoder, or what needs no such "
                "text: finetune, shift, neurons, grace with a radius"
            )
        return found.long().argmax(1, keepdim=True)


class Encoded(EncoderDecoderCache):
    """The attention cache of a decoder, with what the encoder made of the prompts.

    States are (batch, position, d_model); the mask, (batch, position), is 1 for tokens of the prompt.
    """

    def __init__(self, states: Tensor, mask: Tensor) -> None:
        super().__init__(DynamicCache(), DynamicCache())
        self.states, self.mask = states, mask

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps some of the rows."""
        super().batch_select_indices(indices)
        self.states, self.mask = self.states[indices], self.mask[indices]


@dataclass(frozen=True, eq=False)
class _Shifted:
    """What a module says of the positions 0, 1, ... (BART's positions), for the decoder's own positions in rows."""

    places: Tensor

    def __call__(self, output: Tensor) -> Tensor:
        return output.reshape(-1, output.shape[-1])[self.places.to(output.device)]
