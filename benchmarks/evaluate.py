"""A fact's scoring: the plain way and ours, side by side in one run.

The plain way is transformers alone: one forward over the prompts, from whose cache both targets go on; `generate` for
the free answers, and again for what should stay; and a forward over the windows of held-out text. Facts are scored each
by itself, as after its own edit, and together without held-out text, as before an edit. The tokens are the same, and
the targets' log-probabilities are compared before the times are.

    python benchmarks/evaluate.py [--model qwen2.5-coder-0.5b] [--facts counterfact.json] [--count 8]

The last line is a JSON object. By precision: `in_plain_forwards` is ours / plain for a fact by itself, `ratio` the
inverse, `together` the same for a fact of all; `parts` are the seconds a fact of both ways;
`products_seconds_per_fact` is what the operations of our way need at `gflops`, the speed of one large product.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from harness import Timing, about, in_turns, parser_of, print_result, summary, timed
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import StoppingCriteria, StoppingCriteriaList

from corrigenda import Fact, LanguageModel, load
from corrigenda.data import read_facts
from corrigenda.runs.environment import peak_memory_mb
from eval import EvalSettings, Measurement, measure
from eval.measure import on_windows
from eval.records import ScoredProbe, ScoredPrompt
from eval.scoring.fitting import KEPT, prepare
from eval.scoring.held_out import held_out_windows, in_turn, read_held_out

SETTINGS = EvalSettings(max_new_tokens=20, perplexity_sample=2)
"""Those of the leaderboard."""
TARGETS = replace(SETTINGS, generate=False, perplexity_windows=0)
MOST = {"float32": 1e-3, "bfloat16": 1.0}
"""By precision, how far a log-probability of the two ways may be apart."""
SIDE = 2048
"""Rows and columns of the large product."""


class LineBreak(StoppingCriteria):
    """Ends each row at a line break."""

    def __init__(self, lm: LanguageModel) -> None:
        texts = lm.tokenizer.batch_decode([[number] for number in range(len(lm.tokenizer))])
        ends = [number for number, text in enumerate(texts) if "\n" in text]
        self._ends = torch.zeros(lm.model.config.vocab_size, dtype=torch.bool, device=lm.device)
        self._ends[ends] = True

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        """Whether each row ends, (row,)."""
        return self._ends[input_ids[:, -1]]


class Plain:
    """The plain way, for some facts; `line_break` ends free answers, `seconds` are of the last run's parts."""

    def __init__(self, lm: LanguageModel, facts: Sequence[Fact], windows: Sequence[int], line_break: LineBreak) -> None:
        self._lm = lm
        prepared = [prepare(lm, fact, SETTINGS) for fact in facts]
        self._scored = [(one.tokens[prompt], targets) for one in prepared for _, prompt, targets in one.scored]
        jobs = [(one.tokens[job.prompt], job.kind == KEPT, limit) for one in prepared for job, limit in one.jobs]
        self._jobs = {which: [(ids, limit) for ids, kept, limit in jobs if kept == which] for which in (False, True)}
        texts = held_out_windows(lm, SETTINGS)
        self._windows = [texts[number] for number in windows]
        self._line_break = line_break
        self.seconds: dict[str, float] = {}

    def __call__(self) -> list[float]:
        """The log-probabilities of the targets' tokens, one after the other; all else is run, too."""
        self.seconds["targets"], found = timed(self._targets)
        self.seconds["continuations"], _ = timed(self._continuations)
        self.seconds["held-out text"], _ = timed(self._held_out)
        return found

    @torch.no_grad()
    def _targets(self) -> list[float]:
        lm = self._lm
        ids, mask = self._padded([ids for ids, _ in self._scored])
        places = (mask.cumsum(1) - 1).clamp(min=0)
        begun = lm.model(ids, attention_mask=mask, position_ids=places, use_cache=True, logits_to_keep=1)
        rows = [(row, target) for row, (_, targets) in enumerate(self._scored) for target in targets]
        owners = torch.tensor([row for row, _ in rows], device=lm.device)
        width = max(len(target) for _, target in rows)
        padded = [[*target, *[lm.pad_id] * (width - len(target))] for _, target in rows]
        targets = torch.tensor(padded, device=lm.device)
        logits = begun.logits[owners]
        if width > 1:
            begun.past_key_values.batch_select_indices(owners)
            both = torch.cat([mask[owners], torch.ones_like(targets[:, 1:])], 1)
            after = places[owners, -1:] + torch.arange(1, width, device=lm.device)
            how = {"attention_mask": both, "position_ids": after, "past_key_values": begun.past_key_values}
            then = lm.model(targets[:, :-1], **how)
            logits = torch.cat([logits, then.logits], 1)
        found = logits.float().log_softmax(-1).gather(2, targets[..., None])[..., 0].tolist()
        return [value for (_, target), row in zip(rows, found, strict=True) for value in row[: len(target)]]

    @torch.no_grad()
    def _continuations(self) -> None:
        for kept, jobs in self._jobs.items():
            if jobs:
                ids, mask = self._padded([ids for ids, _ in jobs])
                most = max(limit for _, limit in jobs)
                how: dict[str, Any] = {"do_sample": False, "max_new_tokens": most, "pad_token_id": self._lm.pad_id}
                how |= (
                    {"min_new_tokens": most}
                    if kept
                    else {"stopping_criteria": StoppingCriteriaList([self._line_break])}
                )
                self._lm.model.generate(ids, attention_mask=mask, **how)

    @torch.no_grad()
    def _held_out(self) -> None:
        if self._windows:
            self._lm.model(torch.tensor(self._windows, device=self._lm.device)).logits.float().log_softmax(-1)

    def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Tokens and mask (row, position), padded on the left."""
        width = max(map(len, rows))
        ids = [[self._lm.pad_id] * (width - len(row)) + [*row] for row in rows]
        mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
        return torch.tensor(ids, device=self._lm.device), torch.tensor(mask, device=self._lm.device)


def log_probs_of(lm: LanguageModel, facts: Sequence[Fact], found: Sequence[Measurement]) -> Iterator[float]:
    """What `Plain` gives, from measurements."""
    for fact, measurement in zip(facts, found, strict=True):
        records = {kind: iter(records) for kind, records in measurement.prompts.items()}
        for kind, _, _ in prepare(lm, fact, SETTINGS).scored:
            record = next(records[kind])
            if isinstance(record, ScoredPrompt):
                yield from chain(record.log_probs_new or (), record.log_probs_true or ())
            elif isinstance(record, ScoredProbe):
                yield from record.log_probs


def farthest(expected: Sequence[float], result: Sequence[float]) -> float:
    """The largest difference of two log-probabilities."""
    return max(abs(one - other) for one, other in zip(expected, result, strict=True))


def compared(lm: LanguageModel, facts: Sequence[Fact], most: float) -> dict[str, Any]:
    """Both ways, for facts by themselves and together."""
    held_out, line_break = read_held_out(lm, SETTINGS), LineBreak(lm)
    before = measure(lm, facts, SETTINGS, held_out=held_out)  # warms up, too
    every, ours = Plain(lm, facts, (), line_break), partial(measure, lm, facts, SETTINGS, held_out=held_out)
    timing = in_turns(every, lambda: [*log_probs_of(lm, facts, ours())], farthest, most, "together")
    alone, parts = [], []
    for place, fact in enumerate(facts):
        windows = in_turn(place, SETTINGS)
        old = [on_windows(before[place], windows)]
        plain, ours = Plain(lm, [fact], windows, line_break), partial(measure, lm, [fact], SETTINGS, old)
        times = in_turns(plain, lambda: [*log_probs_of(lm, [fact], ours())], farthest, most, fact.id)  # noqa: B023
        seconds = {
            "targets": timed(partial(measure, lm, [fact], TARGETS))[0],
            "held-out text": timed(partial(read_held_out, lm, SETTINGS, windows))[0],
        }
        seconds["continuations"] = times.ours - sum(seconds.values())
        parts.append({name: {"plain": plain.seconds[name], "ours": seconds[name]} for name in seconds})
        alone.append(times)
    with FlopCounterMode(display=False) as counter:
        ours()
    return figures(alone, parts, Timing(timing.plain / len(facts), timing.ours / len(facts))) | {
        "together_difference": timing.difference,
        **products(counter.get_total_flops(), lm.dtype),
    }


def figures(alone: Sequence[Timing], parts: Sequence[Mapping[str, Any]], together: Timing) -> dict[str, Any]:
    """The figures of facts by themselves, and of a fact of all."""
    return {
        **summary(alone, "_per_fact"),
        "in_plain_forwards": statistics.median(1 / one.ratio for one in alone),
        "parts": {
            name: {way: statistics.median(part[name][way] for part in parts) for way in ("plain", "ours")}
            for name in parts[0]
        },
        "together": {"plain": together.plain, "ours": together.ours, "in_plain_forwards": 1 / together.ratio},
    }


def products(operations: int, dtype: torch.dtype) -> dict[str, float]:
    """What some operations need at the speed of one large product."""
    matrix = torch.ones(SIDE, SIDE, dtype=dtype)
    seconds = min(timed(lambda: matrix @ matrix)[0] for _ in range(3))
    speed = 2 * SIDE**3 / seconds
    return {"gflops": speed / 1e9, "products_seconds_per_fact": operations / speed}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--facts", default="embedded", help="a data set as `data.path` takes it")
    parser.add_argument("--count", type=int, default=8, help="how many facts are scored, if the data set has them")
    options = parser.parse_args()
    facts = [replace(fact, generation=()) for fact in read_facts(options.facts, limit=options.count, on_error="skip")]
    result: dict[str, Any] = {}
    for dtype, most in MOST.items():
        lm = load(options.model, dtype=dtype)
        result |= about("evaluate", lm)
        result[dtype] = compared(lm, facts, most)
        del lm
    result["bfloat16"]["in_float32_forwards"] = (
        result["bfloat16"]["ours_seconds_per_fact"] / result["float32"]["plain_seconds_per_fact"]
    )
    print_result(
        {
            **result,
            "ratio": result["float32"]["ratio"],
            "data": options.facts,
            "facts": len(facts),
            "peak_memory_mb": peak_memory_mb(),
        }
    )


if __name__ == "__main__":
    main()
