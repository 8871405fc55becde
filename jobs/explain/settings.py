"""`ExplainSettings`: how far the parts of a fact's page go."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from corrigenda.errors import SettingsError
from corrigenda.settings.checked import AtLeastOne, Seed, checked


@dataclass(frozen=True)
@checked
class ExplainSettings:
    """How far the parts of a fact's page go. With the defaults a page of a small model takes less than a minute.

    Attributes:
        trace_sites: what causal tracing restores, a grid each; tracing is what takes longest.
        trace_samples: the draws of noise that a trace is the mean of. (Papers take 10; so does ``job=trace``.)
        trace_window: how many layers' FFN or attention outputs are restored at once.
        steps: the steps of integrated gradients.
        neurons: knowledge neurons shown of each layer.
        sub_updates: dominant sub-updates shown of each layer.
        words: tokens named where something is read in words.
        answer_tokens: the longest free answer. (A run's answers have up to 50.)
        seed: for the noise.
    """

    group: ClassVar[str] = "job"

    trace_sites: tuple[Literal["block", "ffn", "attention"], ...] = ("block", "ffn")
    trace_samples: AtLeastOne = 2
    trace_window: AtLeastOne = 10
    steps: AtLeastOne = 10
    neurons: AtLeastOne = 8
    sub_updates: AtLeastOne = 8
    words: AtLeastOne = 8
    answer_tokens: AtLeastOne = 20
    seed: Seed = 0

    def __post_init__(self) -> None:
        if not self.trace_sites or len(set(self.trace_sites)) < len(self.trace_sites):
            raise SettingsError(
                f"job.trace_sites={list(self.trace_sites)} must name at least one of block, ffn, attention, each once"
            )
