"""`Features`: which features of a dictionary fire at a fact, what they say, and which an edit adds and removes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from corrigenda import Edit, Fact, LanguageModel
from corrigenda.dictionaries.dictionary import FIRST, FeatureDictionary
from corrigenda.dictionaries.layouts import dictionary_for
from corrigenda.facts import as_fact
from corrigenda.models.alone import one_thread
from corrigenda.moments.text import Text
from corrigenda.settings.checked import AtLeastOne, Count, checked
from corrigenda.system.files import cache_folder, read_kept, write_checked
from corrigenda.system.progress import track
from locate.features.states import batches, ffn_states
from locate.lens.largest import Largest
from locate.lens.words import read_static, top
from locate.pictures import chart, plot_text, token_label
from locate.question import Answer, Question, ask, require_numbers
from locate.saving import SavedResult

PLACES = ("subject", "end")
"""The positions that are looked at: the subject's last token, and the prompt's, where the answer is predicted."""
AROUND = 12
"""Tokens of a context that are shown."""


@dataclass(frozen=True)
class Feature:
    """A feature in words.

    Attributes:
        number: in the dictionary.
        words: the tokens that its row of the decoder promotes most (`locate.lens.words.read_static`).
        contexts: the beginnings of texts at whose last token it fires most, their last tokens.
    """

    number: int
    words: tuple[str, ...]
    contexts: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class FactFeatures(SavedResult, file="features"):
    """The features of a fact, and of what an edit made of it.

    Attributes:
        fact: the fact.
        prompt: as the model read it.
        answer: what counted as its answer.
        dictionary: its name.
        layer: of the FFN.
        before: the activations at `PLACES`, (place, n_features).
        error: of what the dictionary makes of the FFN's output there, as a share of its norm, (place,).
        after: the activations with the edit, likewise; None without one.
        described: the features that fire most at a place, before or after.
    """

    fact: Fact
    prompt: str
    answer: str
    dictionary: str
    layer: int
    before: Tensor
    error: Tensor
    after: Tensor | None
    described: tuple[Feature, ...]

    def fires(self, place: str, n: int = 10) -> list[tuple[int, float]]:
        """The features that fire most at a place, with their activations, without the edit."""
        return _largest(self.before[PLACES.index(place)], n)

    def added(self, place: str, n: int = 10) -> list[tuple[int, float]]:
        """The features that fire with the edit and not without it, with their activations."""
        return self._only(place, self.after, self.before, n)

    def removed(self, place: str, n: int = 10) -> list[tuple[int, float]]:
        """The features that fire without the edit and not with it, with their activations."""
        return self._only(place, self.before, self.after, n)

    def _only(self, place: str, here: Tensor | None, there: Tensor | None, n: int) -> list[tuple[int, float]]:
        if here is None or there is None:
            return []
        row = PLACES.index(place)
        return _largest(here[row] * (there[row] == 0), n)

    def summary(self) -> dict[str, Any]:
        """The figures in plain values."""
        words = {each.number: list(each.words) for each in self.described}
        found: dict[str, Any] = {"prompt": self.prompt, "answer": self.answer, "layer": self.layer}
        for place, error in zip(PLACES, self.error.tolist(), strict=True):
            sides = {"fires": self.fires(place)}
            if self.after is not None:
                sides |= {"added": self.added(place), "removed": self.removed(place)}
            told = {side: [[*each, words.get(each[0], [])] for each in rows] for side, rows in sides.items()}
            found[place] = {"error": error, **told}
        return found

    def table(self) -> Table:
        """A table for a terminal: what fires at each place, and with an edit what is added and removed."""
        table = Table("place", "feature", "activation", "edited", "promotes", "fires after", title=escape(self.prompt))
        described = {each.number: each for each in self.described}
        for row, place in enumerate(PLACES):
            for number in dict.fromkeys(n for n, _ in (*self.fires(place), *self.added(place))):
                one = described.get(number, Feature(number, (), ()))
                after = "" if self.after is None else f"{float(self.after[row, number]):.2f}"
                said = escape(", ".join(map(repr, one.words[:5]))), escape(" ".join("".join(one.contexts[:1]).split()))
                table.add_row(place, str(number), f"{float(self.before[row, number]):.2f}", after, *said)
        errors = ", ".join(
            f"{100 * each:.0f} % at the {p}" for p, each in zip(PLACES, self.error.tolist(), strict=True)
        )
        table.caption = f"layer {self.layer}; what the dictionary leaves of the FFN's output: {errors}"
        return table

    def plot(self, path: str | Path) -> None:
        """Draws the activations at the prompt's end, without and with the edit, as PNG, PDF or SVG."""
        numbers = [*dict.fromkeys(n for n, _ in (*self.fires("end"), *self.added("end")))]
        words = {each.number: each.words for each in self.described}
        sides = {"unedited": self.before} | ({} if self.after is None else {"edited": self.after})
        legend = None if self.after is None else "small"
        with chart(path, plot_text(self.prompt, 80), height=1.5 + 0.25 * len(numbers), legend=legend) as axes:
            for shift, (label, one) in enumerate(sides.items()):
                places = [place + 0.4 * shift for place in range(len(numbers))]
                axes.barh(places, one[PLACES.index("end"), numbers].tolist(), 0.4, label=label)
            names = [" ".join([str(n), *(token_label(word, 12) for word in words.get(n, ())[:3])]) for n in numbers]
            axes.set_yticks(range(len(numbers)), names)
            axes.invert_yaxis()
            axes.set_xlabel(f"activation at the prompt's end, layer {self.layer}")


@dataclass(frozen=True)
@checked
class Features:
    """How the features of a fact are looked for.

    Attributes:
        dictionary: its folder, or a hub's id (`corrigenda.dictionaries.layouts.read_dictionary`).
        layer: of the FFN, where the folder has several.
        top: so many features of each place are described.
        words: that a feature promotes.
        contexts: of each feature, from the text that ships; 0 for none, which takes no pass over it.
        tokens: of this text.

    Raises:
        SettingsError: a setting is not what it has to be.
    """

    result: ClassVar = FactFeatures
    dictionary: str | None = None
    layer: int | None = None
    top: AtLeastOne = 10
    words: AtLeastOne = 8
    contexts: Count = 3
    tokens: AtLeastOne = 65_536

    def check(self, lm: LanguageModel) -> None:
        """Says whether the dictionary fits a model. Raises ValueError: as `dictionary_for` says."""
        self._dictionary(lm)

    @one_thread
    def find(self, lm: LanguageModel, fact: Fact, answer: Answer = None, edit: Edit | None = None) -> FactFeatures:
        """Looks for the features of one fact, whose statement is the prompt; with an edit, for those with it, too.

        The answer is as in `locate.question.ask`. Raises UnknownFactError: the model's answer is not the fact's true
        object; ValueError: as `check` says, or the model gives no finite numbers.
        """
        return self.of(lm, self._dictionary(lm), fact, answer, edit)

    def of(
        self, lm: LanguageModel, one: FeatureDictionary, fact: Fact, answer: Answer = None, edit: Edit | None = None
    ) -> FactFeatures:
        """As `find`, of a dictionary that there is."""
        one.require(lm)
        question = ask(lm, as_fact("features", fact), answer)
        before, error = _activations(lm, one, question)
        after = None
        if edit is not None:
            with edit.applied(lm):  # which may put text before the prompt
                after, _ = _activations(lm, one, ask(lm, fact, question.answer_ids))
        rows = [row for side in (before, after) if side is not None for row in side]
        numbers = sorted({number for row in rows for number, _ in _largest(row, self.top)})
        described = describe(lm, one, numbers, self.words, self.contexts, self.tokens)
        name = Path(one.name).name
        return FactFeatures(fact, question.prompt, question.answer, name, one.layer, before, error, after, described)

    def _dictionary(self, lm: LanguageModel) -> FeatureDictionary:
        return dictionary_for(lm, "Features", self.dictionary, self.layer)


@one_thread
def fact_features(
    lm: LanguageModel,
    dictionary: FeatureDictionary,
    fact: Fact,
    answer: Answer = None,
    edit: Edit | None = None,
    **settings: Any,
) -> FactFeatures:
    """The features of a fact, and what an edit makes of them: `Features(**settings)`."""
    return Features(**settings).of(lm, dictionary, fact, answer, edit)


@torch.no_grad()
def _activations(lm: LanguageModel, one: FeatureDictionary, question: Question) -> tuple[Tensor, Tensor]:
    """The activations at `PLACES`, and the error there."""
    places = [question.subject[1] - 1, question.n_prompt - 1]
    batch = lm.batch([list(question.ids[: question.n_prompt])])
    given, output = (each[0, places].float() for each in ffn_states(lm, one.layer, batch))
    read = one.read_of(given, output)
    require_numbers(lm, question.prompt, [read, output])
    return one.encode(read).cpu(), ((output - one(read)).norm(dim=1) / output.norm(dim=1)).cpu()


def _largest(row: Tensor, n: int) -> list[tuple[int, float]]:
    """The numbers and activations of the features of a row that fire most; none that do not fire."""
    found = row.topk(min(n, len(row)))
    return [
        (number, value) for number, value in zip(found.indices.tolist(), found.values.tolist(), strict=True) if value
    ]


@one_thread
def describe(
    lm: LanguageModel,
    one: FeatureDictionary,
    numbers: Sequence[int],
    words: int = 8,
    contexts: int = 3,
    tokens: int = 65_536,
) -> tuple[Feature, ...]:
    """Features of a dictionary, by their numbers, in words, and where in so many tokens of the text they fire most.

    Edits that are applied are lifted for the text that ships. 0 contexts for none.
    """
    scores = read_static(lm, one.decoder[list(numbers)].to(lm.device))
    found = _contexts(lm, one, Text("shipped", tokens), contexts) if contexts else None
    described = []
    for number, row in zip(numbers, scores, strict=True):
        texts = (
            ()
            if found is None
            else tuple(_ending(lm, found["tokens"], int(p)) for p in found["prefixes"][number] if p >= 0)
        )
        described.append(Feature(number, top(lm, row, words).texts, texts))
    return tuple(described)


def _ending(lm: LanguageModel, tokens: Tensor, prefix: int) -> str:
    text, position = divmod(prefix, tokens.shape[1])
    return str(lm.tokenizer.decode(tokens[text, max(0, position + 1 - AROUND) : position + 1].tolist()))


@torch.no_grad()
def _contexts(lm: LanguageModel, one: FeatureDictionary, text: Text, t: int) -> dict[str, Tensor]:
    """For each feature the t prefixes of a text at whose end it fires most, kept on the disk.

    ``prefixes`` are (n_features, t), the number of the last token in the text, -1 for none; ``tokens`` the text.
    """
    text = text.fitting(lm)
    path = cache_folder() / "features" / f"{lm.cache_key}-{one.fingerprint}-{text.key(lm)}-top{t}.safetensors"
    if (kept := read_kept(path, "the contexts are searched for again")) is not None:
        return kept[0]
    largest = Largest(one.n_features, t, signed=False)
    with lm.edits.suspended():
        sequences = text.sequences(lm)
        numbers = torch.arange(len(sequences) * text.length).view(len(sequences), -1)
        begin = 0
        for some in track([*batches(sequences)], f"Where features fire in {text.tokens:,} tokens"):
            given, output = ffn_states(lm, one.layer, lm.batch(some))
            states = one.read_of(given, output)[:, FIRST:].flatten(0, 1).float()
            largest.add(one.encode(states), numbers[begin : begin + len(some), FIRST:].flatten())
            begin += len(some)
    prefixes = largest.prefixes.masked_fill(largest.coefficients <= 0, -1).cpu()
    found = {"prefixes": prefixes, "tokens": torch.tensor(sequences)}
    write_checked(path, found, {})
    return found
