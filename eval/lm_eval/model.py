"""A model with its edits, as the lm-evaluation-harness wants it. Imported only where the harness is used.

The harness's own wrapper knows nothing of text that a context edit puts before the prompt, nor where a prompt ends, on
which routed edits decide. So scores and answers are computed by the code that computes all others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from corrigenda import LanguageModel
from corrigenda.forward.generation import decode, greedy
from corrigenda.forward.recording import forward_logits
from corrigenda.prompts import encode
from eval.scoring.probabilities import batches

MOST_TOKENS = 2048
"""The longest text where a model's configuration names no limit, as in the harness."""
MOST_NEW_TOKENS = 256
"""The longest answer where a task names no limit, as in the harness."""
LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""What a task's limit may be called, as in the harness; the first that it has counts."""


class EditedModel(TemplateLM):
    """The model as it is now, with whatever edits are applied; at most `max_tokens` run at once."""

    backend = "causal"

    def __init__(self, lm: LanguageModel, max_tokens: int = 4096) -> None:
        super().__init__()
        self._lm = lm
        self._max_tokens = max_tokens
        self.tokenizer = lm.tokenizer
        self.max_length = lm.context_length or MOST_TOKENS

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """The token before a text that has nothing before it."""
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else int(bos)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """A text's tokens, by default with the tokenizer's own special ones."""
        if add_special_tokens is False:
            return list(self.tokenizer(string, add_special_tokens=False)["input_ids"])
        return encode(self.tokenizer, string)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """For each context and continuation: the log-probability, in nats, and whether it is the greedy one."""
        read = [dataclasses.replace(r, arguments=(self._lm.reads(r.args[0]), r.args[1])) for r in requests]
        return list(super().loglikelihood(read, disable_tqdm=True))

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[Any, list[int], list[int]]],
        disable_tqdm: bool = False,
        running_text: bool = False,
        **_: Any,
    ) -> list[tuple[float, bool]]:
        found: list[tuple[float, bool]] = [(0.0, True)] * len(requests)
        rows = []
        for _names, context, continuation in requests:
            text = (context + continuation)[-(self.max_length + 1) :]  # too long a text loses its beginning
            rows.append((text, len(text) - len(continuation)))
        for group in batches(range(len(rows)), [len(text) for text, _ in rows], self._max_tokens):
            texts = [rows[i][0] for i in group]
            prompts = [rows[i][1] for i in group]
            # Running text is all prompt to an edit that routes, as the windows of the held-out texts are.
            batch = self._lm.batch([text[:-1] for text in texts], None if running_text else prompts)
            mask = torch.zeros(batch.input_ids.shape, dtype=torch.bool)
            for place, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
                mask[place, prompt - 1 : len(text) - 1] = True
            logs = forward_logits(self._lm, batch, mask.to(batch.lengths.device)).float().log_softmax(-1)
            begin = 0
            for i, text, prompt in zip(group, texts, prompts, strict=True):
                mine = logs[begin : begin + len(text) - prompt]
                begin += len(text) - prompt
                follow = torch.tensor(text[prompt:], device=mine.device)
                total = float(mine.gather(1, follow[:, None]).double().sum())
                found[i] = (total, bool((mine.argmax(-1) == follow).all()))
        return found

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """For each text its log-probability, in windows; what edits put before the text is read before each of them.

        An edit that routes decides on each window, as on those of the held-out texts.
        """
        windows: list[tuple[None, list[int], list[int]]] = []
        owner: list[int] = []
        for number, request in enumerate(requests):
            before_text = self._lm.edits.before(request.args[0])
            context = encode(self.tokenizer, before_text) if before_text else []
            tokens = self.tok_encode(request.args[0], add_special_tokens=False)
            rolling = get_rolling_token_windows(
                token_list=tokens[
                    tokens[:1] == [self.prefix_token_id] :
                ],  # which stands before the first window anyway
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length - len(context),
                context_len=1,
            )
            for before, text in map(make_disjoint_window, rolling):
                if context:
                    before = context + (list(before) if before != [self.prefix_token_id] else [])
                windows.append((None, list(before), list(text)))
                owner.append(number)
        totals = [0.0] * len(requests)
        found = self._loglikelihood_tokens(windows, running_text=True)
        for number, (value, _) in zip(owner, found, strict=True):
            totals[number] += value
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The continuation of each context up to the first of its stop texts; greedy unless the task samples."""
        answers: list[str] = []
        rows = max(1, self._max_tokens // 64)
        # In the requests' order: answers to like prompts are mostly of like length.
        for begin in range(0, len(requests), rows):
            part = [_Answer.of(self._lm, self.max_length, request) for request in requests[begin : begin + rows]]
            plain = [answer for answer in part if not answer.sampling]
            if plain:
                decode(
                    self._lm,
                    [answer.prompt for answer in plain],
                    [answer.limit for answer in plain],
                    [greedy] * len(plain),
                    [answer.stop() for answer in plain],
                )
            for answer in part:
                if answer.sampling:
                    answer.sample()
                answers.append(answer.cut())
        return answers


@dataclasses.dataclass
class _Answer:
    """One answer in the making: its own stop texts may end it in the middle of a token."""

    lm: LanguageModel
    prompt: list[int]
    until: list[str]
    limit: int
    sampling: dict[str, Any]
    tokens: list[int] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, lm: LanguageModel, max_length: int, request: Instance) -> _Answer:
        context, wanted = request.args
        wanted = dict(wanted)
        until = wanted.get("until") or []
        said = (int(wanted[name]) for name in LIMITS if wanted.get(name))
        limit = next(said, min(MOST_NEW_TOKENS, max_length // 2))
        if limit >= max_length:
            raise ValueError(
                f"a task asks for answers of up to {limit} tokens (max_gen_toks), which leaves no room for a prompt in "
                f"the {max_length} tokens that {lm.name} reads; take the task out"
            )
        sampling = {name: wanted[name] for name in ("temperature", "top_p", "top_k") if wanted.get(name) is not None}
        # A temperature of 0 means greedy, whatever else is said, and any other one by itself that answers are sampled.
        temperature, sample = sampling.get("temperature"), wanted.get("do_sample")
        sample = temperature != 0 and bool(temperature if sample is None else sample)
        return cls(
            lm,
            lm.tokens(context)[limit - max_length :],
            [until] if isinstance(until, str) else list(until),
            limit,
            sampling | {"do_sample": True} if sample else {},
        )

    def stop(self) -> Callable[[int], bool]:
        """Whether the answer ends with a token; it is told every token once."""

        def ends(token: int) -> bool:
            if self.lm.is_end(token):
                return True
            self.tokens.append(token)
            return any(stop in self._text() for stop in self.until)

        return ends

    def sample(self) -> None:
        ids = torch.tensor([self.prompt], device=self.lm.device)
        with torch.no_grad():
            whole = self.lm.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=self.limit,
                pad_token_id=self.lm.pad_id,
                **self.sampling,
            )
        self.tokens = whole[0, len(self.prompt) :].tolist()

    def cut(self) -> str:
        """The text before the first of the stop texts."""
        text = self._text()
        return text[: min([text.index(stop) for stop in self.until if stop in text], default=len(text))]

    def _text(self) -> str:
        return self.lm.text(self.tokens)
