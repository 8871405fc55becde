"""What steering does: a property of a model's texts against its perplexity, over the strength of an edit.

Geva et al. 2022, "Transformer Feed-Forward Layers Build Predictions by Promoting Concepts in the Vocabulary Space",
section 5.1 and table 3.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from rich.table import Table

from corrigenda import Edit, LanguageModel
from corrigenda.intervals import interval
from corrigenda.models.alone import one_thread
from corrigenda.text.words import Phrases
from eval.measurement import HeldOut
from eval.scoring.held_out import read_held_out
from eval.settings import EvalSettings

Bounded = tuple[float, float | None, float | None]
"""A figure with its interval's bounds; None where there is none."""
Property = Callable[[str], float]
"""Whether a text has a property (True, False), or how much of it, from 0 to 1: a classifier of the user's."""


@dataclass(frozen=True)
class Steered:
    """What an edit of one strength does.

    Attributes:
        strength: the edit's; 0 for the model without one.
        share: the mean of the property over the generated texts, and its interval's bounds (None where there is none).
        drift: ln ppl(after) - ln ppl(before), the mean over windows of the held-out texts, and its interval's bounds;
            None where the windows were not read.
        texts: what was generated, in the order of the prompts.
    """

    strength: float
    share: Bounded
    drift: Bounded | None
    texts: tuple[str, ...]


@dataclass(frozen=True)
class SteeringReport:
    """A property of generated texts and the perplexity, over strengths.

    Attributes:
        prompts: after which the texts were generated.
        rows: the model as it is first, then the edits, the weakest first.
    """

    prompts: tuple[str, ...]
    rows: tuple[Steered, ...]

    def summary(self) -> dict[str, Any]:
        """The figures in plain values, without the texts."""
        rows = [{name: value for name, value in asdict(row).items() if name != "texts"} for row in self.rows]
        return {"n_prompts": len(self.prompts), "rows": rows}

    def table(self) -> Table:
        """A table for a terminal."""
        table = Table("strength", "texts with the property (%)", "perplexity drift (nats)")
        for row in self.rows:
            drift = "" if row.drift is None else _shown(row.drift, 1, "{:.3f}")
            table.add_row(f"{row.strength:g}", _shown(row.share, 100, "{:.1f}"), drift)
        return table


@one_thread
def steering_report(
    lm: LanguageModel,
    edits: Mapping[float, Edit],
    prompts: Sequence[str],
    has: Property,
    settings: EvalSettings | None = None,
) -> SteeringReport:
    """Generates texts with each edit, greedily, and reads the held-out texts.

    Args:
        lm: a causal model; what is applied already stays, and counts as the model as it is.
        edits: by strength, e.g. `editing.neurons.steer.steer` with several.
        prompts: after which texts are generated.
        has: the property: `has_word_of`, or a classifier.
        settings: how many tokens are generated (`max_new_tokens`), and which windows are read.

    Raises:
        ValueError: there is no prompt, or the property is no share.
    """
    if not prompts:
        raise ValueError("no prompt is given, so no text can be generated")
    settings = settings or EvalSettings()
    prompts = tuple(prompts)
    plain = read_held_out(lm, settings)
    rows = [_steered(lm, 0.0, prompts, has, settings, plain, plain)]
    for strength in sorted(edits):
        with edits[strength].applied(lm):
            rows.append(_steered(lm, strength, prompts, has, settings, plain, read_held_out(lm, settings)))
    return SteeringReport(prompts, tuple(rows))


def has_word_of(words: Collection[str]) -> Property:
    """The property of a text that one of some words stands in it, whole, in small or large letters.

    Raises:
        ValueError: there is no word.
    """
    if isinstance(words, str) or not words:
        raise ValueError(f"words={words!r} must be a list of one word or more")
    phrases = Phrases(sorted(words))
    return lambda text: float(bool(phrases.within(text)))


def _steered(
    lm: LanguageModel,
    strength: float,
    prompts: tuple[str, ...],
    has: Property,
    settings: EvalSettings,
    before: HeldOut | None,
    after: HeldOut | None,
) -> Steered:
    texts = tuple(lm.generate(list(prompts), settings.max_new_tokens))
    found = [float(has(text)) for text in texts]
    outside = [value for value in found if not 0 <= value <= 1]
    if outside:
        raise ValueError(f"the property of a text is {outside[0]}, and has to be from 0 to 1")
    drift: Bounded | None = None
    if before is not None and after is not None:
        first, then = before.by_window(), after.by_window()
        drifts = [then[window] - first[window] for window in first]
        low, high = interval([drifts], list(first)) or (None, None)
        drift = (fmean(drifts), low, high)
    # Prompts that are the same are no independent cases.
    low, high = interval([found], prompts, shares=True) or (None, None)
    return Steered(float(strength), (fmean(found), low, high), drift, texts)


def _shown(figure: Bounded, times: float, form: str) -> str:
    value, low, high = figure
    text = form.format(times * value)
    return (
        text if low is None or high is None else f"{text} ({form.format(times * low)} to {form.format(times * high)})"
    )
