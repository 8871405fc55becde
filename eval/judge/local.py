"""`LocalModel`: a judge that runs in this process."""

from collections.abc import Callable, Sequence

from corrigenda import LanguageModel, load
from corrigenda.forward.generation import decode
from corrigenda.models.chat import chat_tokens
from corrigenda.system.progress import track
from eval.scoring.probabilities import batches

_MOST_TOKENS = 4096
"""Tokens run at once, padding included."""


class LocalModel:
    """Asks a model of this process, greedily, through its chat template where it has one."""

    def __init__(self, name: str, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._lm: LanguageModel = load(name)

    @property
    def identity(self) -> dict[str, str]:
        """What makes it the same judge: its weights, their precision, and how it is spoken to."""
        template = str(self._lm.tokenizer.chat_template or "")
        return {"fingerprint": self._lm.fingerprint, "dtype": str(self._lm.dtype), "chat_template": template}

    def ask(self, prompts: Sequence[str], keep: Callable[[str, str], None]) -> None:
        """Asks everything, in batches. Raises ContextLengthError: a prompt is longer than the judge reads."""
        lm = self._lm
        tokens = [chat_tokens(lm.tokenizer, [("user", prompt)]) or lm.tokens(prompt) for prompt in prompts]
        lengths = [len(ids) + self._max_tokens for ids in tokens]
        groups = list(batches(range(len(prompts)), lengths, _MOST_TOKENS))
        for group in track(groups, f"Asking the judge about {len(prompts)} answers", bar=False):
            for place, added in zip(group, decode(lm, [tokens[i] for i in group], self._max_tokens), strict=True):
                keep(prompts[place], lm.text(added))
