"""Text that second moments are taken over: what ships, sampled from the model, from a local file, or from a hub."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

from corrigenda.data.embedded import shipped_text
from corrigenda.errors import SettingsError
from corrigenda.forward.generation import decode, sampler
from corrigenda.language_model import LanguageModel
from corrigenda.prompts import encode_plain, specials
from corrigenda.settings.checked import AtLeastOne, Seed, checked
from corrigenda.system.files import cache_folder, digest_of, expanded, read_kept, write_checked
from corrigenda.system.progress import track

logger = logging.getLogger(__name__)

ROWS = 64
"""Sequences sampled at once."""

HUB = {
    "wikitext": ("Salesforce/wikitext", "wikitext-103-raw-v1", "text"),
    "wikipedia": ("wikimedia/wikipedia", "20231101.en", "text"),
}
"""Short names of hub data sets: repository, configuration, column."""

PER_COEFFICIENT = {"shipped": 24}
OTHERWISE = 8
"""By source, how many tokens a second moment takes for each of a layer's coefficients (`docs/real-models.md`)."""

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


@dataclass(frozen=True)
@checked
class Text:
    """Which text second moments are taken over.

    Attributes:
        source: ``shipped`` (`corrigenda.data.embedded.shipped_text`; a model whose tokenizer does not know its words is
            sampled from), ``self`` (sampled from the model), a local text file, ``wikitext``, ``wikipedia``, or a hub
            data set with a column ``text`` (``owner/name``, streamed: never downloaded whole).
        tokens: how many tokens in all.
        length: how many in one sequence, those that the tokenizer puts before any text (a BOS) among them.
        seed: for sampling.
        top_k: sample from the k most likely tokens only; None for the whole distribution.
    """

    source: str = "shipped"
    tokens: AtLeastOne = 8192
    length: AtLeastOne = 64
    seed: Seed = 0
    top_k: AtLeastOne | None = None

    def __post_init__(self) -> None:
        if self.tokens < self.length:
            raise SettingsError(f"Text: tokens={self.tokens} must be at least length={self.length}, one whole sequence")

    @property
    def n_sequences(self) -> int:
        """How many sequences make up the text."""
        return -(-self.tokens // self.length)

    def at_least(self, tokens: int) -> Text:
        """The same with so many tokens, or itself, if it has as many."""
        return self if self.tokens >= tokens else dataclasses.replace(self, tokens=tokens)

    def per_coefficient(self, lm: LanguageModel, asked: int | None = None) -> int:
        """How many tokens a second moment takes for each coefficient: as many as asked for, else by the source."""
        return PER_COEFFICIENT.get(self.fitting(lm).source, OTHERWISE) if asked is None else asked

    def key(self, lm: LanguageModel) -> str:
        """A name for caches: equal for equal text of a model. A local file goes by its content."""
        source = self.source
        if source == "shipped":
            source = f"shipped-{hashlib.sha256(shipped_text().encode()).hexdigest()[:8]}"
        elif self._is_file:
            source = digest_of(expanded(source))[:16]
        top_k = "" if self.top_k is None else f"-top{self.top_k}"
        before = "".join(f"-after{token}" for token in specials(lm.tokenizer))
        return f"{source.replace('/', '--')}-{self.tokens}x{self.length}-{self.seed}{top_k}{before}"

    def fitting(self, lm: LanguageModel) -> Text:
        """The same; in place of the shipped text one sampled from a model whose tokenizer does not know its words."""
        if self.source != "shipped" or (unknown := lm.tokenizer.unk_token_id) is None:
            return self
        ids = encode_plain(lm.tokenizer, shipped_text()[:4000])
        if ids.count(unknown) <= 0.01 * len(ids):
            return self
        share = ids.count(unknown) / len(ids)
        logger.info("%s does not know %.0f %% of the shipped text; text is sampled from it", lm.name, 100 * share)
        return dataclasses.replace(self, source="self")

    @property
    def _is_file(self) -> bool:
        return expanded(self.source).is_file()

    def sequences(self, lm: LanguageModel) -> list[list[int]]:
        """The text as token sequences of `length`. Of the shipped text there may be fewer than were asked for: all.

        Each begins as a prompt does, with what the tokenizer puts before any text: keys and targets have it, too.

        Raises:
            FileNotFoundError: the source is neither a file nor looks like a data set.
            ConnectionError: the hub cannot be reached.
            ValueError: the source is shorter than the tokens asked for, or the shipped text than one sequence; or a
                sequence has room for special tokens only.
        """
        before = specials(lm.tokenizer)
        own = self.length - len(before)
        if own < 1:
            raise SettingsError(
                f"Text: length={self.length} leaves no room beside the {len(before)} special tokens that the tokenizer "
                f"of {lm.name} puts before a text; take longer sequences"
            )
        if (fitting := self.fitting(lm)).source == "self":
            return [before + sampled[:own] for sampled in sample(lm, fitting)]
        paragraphs: Iterable[str]
        if self.source == "shipped":
            paragraphs = shipped_text().split("\n\n")
        elif self._is_file:
            paragraphs = expanded(self.source).read_text(encoding="utf-8-sig").split("\n\n")
        elif self.source in HUB or (_HUB_ID.fullmatch(self.source) and not self.source.endswith(".txt")):
            paragraphs = _stream(self.source)
        else:
            raise FileNotFoundError(
                f"text source {self.source!r} is neither 'self', nor 'shipped', nor a file, "
                f"nor a hub data set ({', '.join(HUB)}, owner/name)"
            )
        pieces = itertools.islice(_cut(lm, paragraphs, own), self.n_sequences)
        sequences = [before + piece for piece in pieces]
        if sequences and len(sequences) < self.n_sequences and self.source == "shipped":
            found = len(sequences) * self.length
            logger.warning("the shipped text has %d tokens for %s, %d were asked for", found, lm.name, self.tokens)
        elif len(sequences) < self.n_sequences:
            raise ValueError(
                f"text source {self.source!r} has only {len(sequences) * self.length} tokens "
                f"in whole sequences of {self.length}, {self.tokens} were asked for"
            )
        return sequences


def opening(lm: LanguageModel) -> list[int]:
    """What a sampled text starts from: what the tokenizer puts before any text, else a text separator."""
    tokenizer = lm.tokenizer
    if ids := specials(tokenizer):
        return ids
    # Instruction-tuned models often name the opening of a chat turn as their BOS; a text separator is what we want.
    separators = ["<|endoftext|>", "<s>", "<bos>", tokenizer.bos_token, tokenizer.eos_token]
    known = tokenizer.get_vocab()
    for token in separators:
        if token in known:
            return [known[token]]
    return [0]


def sample(lm: LanguageModel, text: Text, purpose: str = "text") -> list[list[int]]:
    """Text sampled from the unedited model's own distribution, special tokens barred; kept on disk, resumed there.

    Every chunk has its own random numbers, so that the text does not depend on where it was interrupted.
    """
    folder = cache_folder() / "texts" / f"{lm.cache_key}-{text.key(lm)}"
    sequences: list[list[int]] = []
    chunks = range(-(-text.n_sequences // ROWS))
    if not all((folder / f"{chunk}.safetensors").is_file() for chunk in chunks):
        chunks = track(chunks, f"Sampling {purpose} from {lm.name} ({text.tokens:,} tokens)")  # type: ignore[assignment]
    start = opening(lm)
    for chunk in chunks:
        path = folder / f"{chunk}.safetensors"
        if known := read_kept(path, "it is sampled again"):
            sequences += known[0]["tokens"].tolist()
            continue
        generator = torch.Generator().manual_seed((text.seed << 20) + chunk)
        choose = sampler(generator, text.top_k, banned=sorted({*lm.tokenizer.all_special_ids, *lm.end_ids}))
        # The files go by the unedited model's key, so what they hold has to be its text.
        with lm.edits.suspended():
            added = decode(lm, [start] * ROWS, text.length, choose, stop=lambda _token: False)
        write_checked(path, {"tokens": torch.tensor(added)}, {})
        sequences += added
    return sequences[: text.n_sequences]


def _cut(lm: LanguageModel, paragraphs: Iterable[str], length: int) -> Iterator[list[int]]:
    """Whole sequences of `length` tokens; a paragraph may fill several, and the rest of one begins the next."""
    rest: list[int] = []
    for paragraph in paragraphs:
        rest += encode_plain(lm.tokenizer, paragraph.strip() + "\n") if paragraph.strip() else []
        while len(rest) >= length:
            yield rest[:length]
            rest = rest[length:]


def _stream(source: str) -> Iterator[str]:
    from corrigenda.data.repository import hub_records  # `datasets` is slow to import and seldom needed here

    repository, config, column = HUB.get(source, (source, None, "text"))
    for row in hub_records(repository, "train", config):
        if not isinstance(row, Mapping) or column not in row:
            raise ValueError(f"the data set {repository} has no column {column!r}: {row!r:.200}")
        yield str(row[column])
