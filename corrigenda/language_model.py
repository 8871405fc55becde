"""`LanguageModel`: a model with the edits that are applied to it, and the text that it then generates."""

from __future__ import annotations

import copy
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch

from corrigenda.edits.added_neurons import AddedNeuronsEdit
from corrigenda.edits.edit import Editable
from corrigenda.edits.export.wider import wider
from corrigenda.edits.stack import AppliedEdits
from corrigenda.forward import answering, generation
from corrigenda.forward.recording import forward_logits
from corrigenda.forward.self_check import check_itself
from corrigenda.models.bare import changed_by_hand, first_line
from corrigenda.models.condition import not_finite, require_no_adapter
from corrigenda.models.families import Family
from corrigenda.prompts import encode, put_before
from corrigenda.settings.checked import AtLeastOne, check_value
from corrigenda.text.display import quoted

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class LanguageModel(Editable):
    """A language model that can be looked into and edited.

    It is used by one thread at a time: edits, locators, evaluation, generation, and a ``with edit.applied(lm)`` block
    as a whole hold its lock, and other threads wait. Who calls ``lm.model`` itself from several threads holds
    ``lm.alone``.

    Args:
        model: as for `BareModel` (`corrigenda.models.bare`).
        tokenizer: its tokenizer.
        name: what messages and results call it.
        family: where its parts are, if its type is not in `families.FAMILIES`.

    Attributes:
        edits: the edits that are applied now, in order (`AppliedEdits`).
        kept: second moments that were read from the disk, by path (`corrigenda.moments.second_moment`); gone with the
            model.
        looked_at: what `corrigenda.disturbance` saw last, before an edit, and the state that the model was in.

    Raises:
        UnsupportedModelError: its parts were not found.
    """

    edits: AppliedEdits
    kept: dict[Path, Any]
    looked_at: tuple[str, Any] | None

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        name: str | None = None,
        family: Family | None = None,
    ) -> None:
        super().__init__(model, tokenizer, name, family)
        self.edits = AppliedEdits(self)
        self.kept = {}
        self.looked_at = None
        check_itself(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> LanguageModel:
        """A copy with a model of its own, and the same edits applied to it."""
        with self.alone:
            memo[id(self)] = twin = type(self).__new__(type(self))
            twin.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()})
            twin.edits.copied(twin, self.edits)
            return twin

    def reads(self, prompt: str) -> str:
        """A prompt as this model reads it now: after the text that edits put before it."""
        return put_before(self.tokenizer, self.edits.before(prompt), prompt)

    def tokens(self, prompt: str) -> list[int]:
        """The tokens of a prompt as this model reads it now."""
        return encode(self.tokenizer, self.reads(prompt) if isinstance(prompt, str) else prompt)

    @overload
    def generate(self, prompts: str, max_new_tokens: int = ..., stop_at_newline: bool = ...) -> str: ...

    @overload
    def generate(
        self, prompts: list[str] | tuple[str, ...], max_new_tokens: int = ..., stop_at_newline: bool = ...
    ) -> list[str]: ...

    def generate(
        self, prompts: str | list[str] | tuple[str, ...], max_new_tokens: int = 50, stop_at_newline: bool = False
    ) -> str | list[str]:
        """Greedy continuations, without the prompts.

        Args:
            prompts: one prompt or several (run as one batch).
            max_new_tokens: the most tokens to add.
            stop_at_newline: whether a line break ends a continuation, as the end token does.

        Raises:
            ContextLengthError: a prompt with the tokens that may be added is longer than the model reads.
            TypeError: a prompt is no text.
            ValueError: there is no prompt, or an empty one; or the model is a masked one.
        """
        if not isinstance(prompts, (str, list, tuple)):
            raise TypeError(f"prompts must be a text or a list of texts, not {type(prompts).__name__} {prompts!r:.80}")
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        stop = self.ends_answer if stop_at_newline else self.is_end
        with self.alone:
            added = generation.decode(self, [self.tokens(text) for text in texts], max_new_tokens, stop=stop)
        continuations = [self.continuation(tokens) for tokens in added]
        if stop_at_newline:
            continuations = [first_line(text) for text in continuations]
        return continuations[0] if isinstance(prompts, str) else continuations

    @torch.no_grad()
    def next_tokens(self, prompt: str, most: int = 10) -> list[tuple[str, float]]:
        """The likeliest next tokens after a prompt, as texts, each with its probability; the likeliest first.

        Args:
            prompt: the prompt; of a masked model the tokens are those at its mask.
            most: how many tokens, at least 1.

        Raises:
            ContextLengthError: the prompt is longer than the model reads.
            ValueError: the prompt is empty, or `most` is no such number.
        """
        check_value("next_tokens", "most", most, AtLeastOne)
        with self.alone:
            ids = encode(self.tokenizer, answering.with_mask(self, self.reads(prompt)))
            self.require_room(len(ids), f"the prompt {quoted(prompt)}")
            batch = self.batch([ids])
            at = torch.tensor([answering.position(self, ids)], device=batch.lengths.device)
            probabilities = forward_logits(self, batch, at)[0].float().softmax(-1)
        best, found = probabilities.topk(min(most, len(probabilities)))
        return [(str(self.tokenizer.decode([one])), p) for one, p in zip(found.tolist(), best.tolist(), strict=True)]

    def _weights_hash(self) -> str:
        if self.edits:
            raise RuntimeError(
                "the fingerprint is that of the unedited model; it was first asked for on an edited one: revert the "
                "edits, read lm.fingerprint, and apply them again"
            )
        return super()._weights_hash()

    def _require_as_loaded(self, changed: Set[str]) -> None:
        values = self._values_of()
        for name in changed & values.keys():  # edits write here, and what they wrote is known
            if self.edits.changed_by_hand(self.places(values[name])):
                raise changed_by_hand(self.name, {name})
        if others := changed - values.keys():
            with self.edits.suspended():
                super()._require_as_loaded(others)

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes the model as it is now, applied weight edits included, and its tokenizer, for `from_pretrained`.

        Applied neurons (`AddedNeuronsEdit`) make the networks of the model in the folder that much wider.

        Raises:
            ValueError: an edit is applied that is neither in the weights nor neurons; or a weight is not finite.
            FileExistsError: `folder` is a file.
            UnsupportedModelError: an adapter was put inside the model: it alone would be written; or as
                `corrigenda.edits.export.wider.wider` says.
            EditRefusedError: neurons are too large for the precision of the weights.
        """
        require_no_adapter(self.model, self.name)
        if Path(folder).exists() and not Path(folder).is_dir():  # transformers would write nothing and return
            raise FileExistsError(f"{folder} is a file; name a folder to write the model into")
        neurons = [edit for edit in self.edits if isinstance(edit, AddedNeuronsEdit)]
        outside = [edit.kind for edit in self.edits if not (edit.in_weights or edit in neurons)]
        if outside:
            raise ValueError(
                f"edits of kind {', '.join(outside)} are applied that are not in the weights; "
                "revert them or save them as edits"
            )
        with self.alone:
            if found := not_finite(self.model):
                raise ValueError(
                    f"the weights {found[0]} of {self.name} are not all finite, so nothing is written; load it again"
                )
            (wider(self, neurons) if neurons else self.model).save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
