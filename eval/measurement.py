"""`Measurement`: the records of one fact, what was found beside them, and the file in which measurements are kept.

One file: the records, and the next-token distributions, two megabytes for a fact with ten neighbours and a vocabulary
of 50,000.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from corrigenda.system.files import read_kept, write_checked
from eval.records import (
    CHECK_KIND,
    QUESTION_KIND,
    RECORD_OF,
    TEXT_KIND,
    UNSCORED_KINDS,
    AskedQuestion,
    Record,
    SampledText,
    ScoredCheck,
    ScoredProbe,
    ScoredPrompt,
)


@dataclass(frozen=True)
class HeldOut:
    """What a model gave to windows of the held-out texts.

    Attributes:
        windows: their numbers; window k is of text k modulo the number of texts.
        log_probs: for each the sum of its tokens' log-probabilities, in nats.
        tokens: for each, how many tokens that are; a window's first token is read and not predicted.
        activated: for each, whether an applied edit answered in it; None where no applied edit is routed.
    """

    windows: tuple[int, ...]
    log_probs: tuple[float, ...]
    tokens: tuple[int, ...]
    activated: tuple[bool, ...] | None = None

    @property
    def log_perplexity(self) -> float:
        """The mean negative log-probability of a token, in nats."""
        return -sum(self.log_probs) / sum(self.tokens)

    def by_window(self) -> dict[int, float]:
        """By window the mean negative log-probability of its tokens, in nats."""
        parts = zip(self.windows, self.log_probs, self.tokens, strict=True)
        return {window: -log_prob / n for window, log_prob, n in parts}

    def only(self, windows: Sequence[int]) -> HeldOut:
        """Some of the windows, in that order; those that were not read are left out.

        Raises:
            ValueError: none of them was read.
        """
        place = {window: number for number, window in enumerate(self.windows)}
        kept = [place[window] for window in windows if window in place]
        if not kept:
            raise ValueError(f"held-out windows {list(windows)}: none was read; there are {list(self.windows)}")
        return HeldOut(
            tuple(self.windows[number] for number in kept),
            tuple(self.log_probs[number] for number in kept),
            tuple(self.tokens[number] for number in kept),
            None if self.activated is None else tuple(self.activated[number] for number in kept),
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields that are known, as JSON values: what runs keep."""
        found: dict[str, Any] = {
            "windows": list(self.windows),
            "log_probs": [value if math.isfinite(value) else None for value in self.log_probs],
            "tokens": list(self.tokens),
        }
        return found if self.activated is None else found | {"activated": list(self.activated)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> HeldOut:
        """What an object holds that `to_dict` gave.

        Raises:
            ValueError: its lists are not of one length, or empty, or a window has no token.
        """
        log_probs = tuple(math.nan if value is None else float(value) for value in record["log_probs"])
        windows, tokens, answers = tuple(record["windows"]), tuple(record["tokens"]), record.get("activated")
        lengths = {len(windows), len(log_probs), len(tokens), len(windows if answers is None else answers)}
        if len(lengths) > 1 or not windows or min(tokens) < 1:
            raise ValueError(
                "held_out: windows, log_probs, tokens and activated must be lists of one length, not empty"
            )
        return cls(windows, log_probs, tokens, None if answers is None else tuple(map(bool, answers)))


@dataclass
class Measurement:
    """What one model, edited or not, did with one fact's prompts.

    Attributes:
        prompts: by kind (`RECORD_OF`) a record for each prompt, in the fact's order; kinds without prompts are absent.
        values: by metric, the fact's value.
        distributions: by prompt the next-token log-probabilities, (vocabulary,), that are compared with those before or
            after; for the KL, not for files.
        continuations: by prompt the tokens of the greedy continuation, end tokens barred, that should stay; for
            `preserved`, not for files.
        log_perplexity: that of the held-out texts, in nats, where nothing is known of their windows (older records,
            submissions); in files it stands among the values.
        error: why the fact was not measured (`eval.scoring.fitting`); empty where it was.
        held_out: what the model gave to windows of the held-out texts, if they were read.
    """

    prompts: dict[str, list[Record]] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    distributions: dict[str, Tensor] = field(default_factory=dict)
    continuations: dict[str, list[int]] = field(default_factory=dict)
    log_perplexity: float | None = None
    error: str = ""
    held_out: HeldOut | None = None

    def scored(self, *kinds: str) -> list[ScoredPrompt]:
        """The records of prompts of these kinds, each one of `PAIRED_KINDS`."""
        return [record for kind in kinds for record in self.prompts.get(kind, ()) if isinstance(record, ScoredPrompt)]

    def probes(self, *kinds: str) -> list[ScoredProbe]:
        """The records of probes of these kinds, each one of `PROBE_KINDS`."""
        return [record for kind in kinds for record in self.prompts.get(kind, ()) if isinstance(record, ScoredProbe)]

    def elsewhere(self) -> list[ScoredPrompt | ScoredProbe]:
        """The records of neighbourhood and locality prompts: the answers there should stay as they are."""
        return [*self.scored("neighbourhood"), *self.probes("locality")]

    def keeping(self) -> list[ScoredPrompt | ScoredProbe]:
        """The records of all prompts whose continuations and next-token distributions are compared."""
        return [*self.elsewhere(), *self.scored(*UNSCORED_KINDS)]

    def checks(self) -> list[ScoredCheck]:
        """The records of fact-check questions."""
        return [record for record in self.prompts.get(CHECK_KIND, ()) if isinstance(record, ScoredCheck)]

    def texts(self) -> list[SampledText]:
        """The sampled texts."""
        return [record for record in self.prompts.get(TEXT_KIND, ()) if isinstance(record, SampledText)]

    def questions(self) -> list[AskedQuestion]:
        """The questions in real use."""
        return [record for record in self.prompts.get(QUESTION_KIND, ()) if isinstance(record, AskedQuestion)]

    def to_dict(self) -> dict[str, Any]:
        """Values and records as JSON values: what runs keep. A value that is not finite is left out."""
        values = {key: value for key, value in self.values.items() if math.isfinite(value)}
        state: dict[str, Any] = {"values": values, "prompts": finite(self.prompts)}
        if self.held_out is not None:
            state["held_out"] = self.held_out.to_dict()
        return state | {"error": self.error} if self.error else state

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Measurement:
        """The measurement of an object that `to_dict` gave, without what only a running comparison needs.

        Records of earlier versions are read as they are: what `preserved`, `answer`, `p_new`, `p_true` and the values
        that follow from them mean there is said at `DEFINITIONS`, and they name no `blank`.

        Raises:
            ValueError: it has prompts of a kind that is not known.
        """
        prompts: dict[str, list[Record]] = {}
        for kind, records in state["prompts"].items():
            if kind not in RECORD_OF:
                raise ValueError(f"there are no prompts of kind {kind!r}; the kinds are {', '.join(RECORD_OF)}")
            prompts[kind] = [RECORD_OF[kind].from_dict(record) for record in records]
        values = dict(state.get("values") or {})
        error = str(state.get("error") or "")
        held_out = HeldOut.from_dict(state["held_out"]) if state.get("held_out") is not None else None
        level = values.get("log_perplexity") if held_out is None else None
        return cls(prompts, values, log_perplexity=level, error=error, held_out=held_out)


def finite(value: Any) -> Any:
    """A nested value for JSON, which has no word for what is not finite: None stands in its place."""
    if isinstance(value, Mapping):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


AGAIN = "it is measured again"


def file_of(folder: Path, name: str) -> Path:
    """The file that holds the measurements of a name."""
    return folder / f"{name}.safetensors"


def write_measurements(folder: Path, name: str, found: Sequence[Measurement]) -> None:
    """Writes measurements under a name."""
    rows = [row for measurement in found for row in measurement.distributions.values()]
    tensors = {"distributions": torch.stack(rows)} if rows else {}
    records = [m.to_dict() | {"continuations": m.continuations, "distributions": list(m.distributions)} for m in found]
    write_checked(file_of(folder, name), tensors, {"records": json.dumps(records, allow_nan=False)})


def stored_measurements(folder: Path, name: str) -> list[Measurement] | None:
    """What `write_measurements` wrote; None where there is nothing to rely on (see `read_kept`)."""
    kept = read_kept(file_of(folder, name), AGAIN)
    if kept is None:
        return None
    rows = iter(kept[0].get("distributions", ()))
    found = []
    for record in json.loads(kept[1]["records"]):
        mine = {prompt: next(rows) for prompt in record["distributions"]}
        found.append(replace(Measurement.from_dict(record), distributions=mine, continuations=record["continuations"]))
    return found
