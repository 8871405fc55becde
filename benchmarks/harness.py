"""What the benchmarks share: the plain way and ours timed in turns, and the JSON object of the last line."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from corrigenda import Edit, LanguageModel
from corrigenda.edits.routed import activated
from corrigenda.forward.generation import decode

T = TypeVar("T")
P = TypeVar("P")


@dataclass(frozen=True)
class Timing:
    """Seconds of the plain way and of ours for the same work, and how far their results are apart."""

    plain: float
    ours: float
    difference: float = 0.0

    @property
    def ratio(self) -> float:
        """Plain / ours: how many times faster ours is."""
        return self.plain / self.ours


def parser_of(text: str | None) -> argparse.ArgumentParser:
    """A parser with a benchmark's docstring for its help, and its option ``--model``."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    return parser


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """Seconds, and what the call returned."""
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def in_turns(
    plain: Callable[[], P], ours: Callable[[], T], differ: Callable[[P, T], float], most: float, what: str = ""
) -> Timing:
    """Times the plain way, then ours, compares what they give, and says it of `what` on standard error.

    Raises SystemExit: the results differ by more than `most`.
    """
    plain_seconds, expected = timed(plain)
    our_seconds, result = timed(ours)
    difference = differ(expected, result)
    if not difference <= most:
        raise SystemExit(f"the two ways differ by {difference:.1e}, more than {most:g}")
    line = f"plain {plain_seconds:.1f} s, ours {our_seconds:.2f} s, difference {difference:.1e}"
    print(f"{what}: {line}" if what else line, file=sys.stderr, flush=True)
    return Timing(plain_seconds, our_seconds, difference)


def relative(expected: Tensor, result: Tensor) -> float:
    """The norm of a difference, relative to what was expected."""
    return float((result - expected).norm() / expected.norm())


def summary(timings: Sequence[Timing], per: str = "") -> dict[str, float]:
    """The medians of several timings; `per` stands behind the names of seconds (``_per_fact``)."""
    return {
        f"plain_seconds{per}": statistics.median(each.plain for each in timings),
        f"ours_seconds{per}": statistics.median(each.ours for each in timings),
        "ratio": statistics.median(each.ratio for each in timings),
        "ratio_smallest": min(each.ratio for each in timings),
        "largest_difference": max(each.difference for each in timings),
    }


def about(benchmark: str, lm: LanguageModel) -> dict[str, Any]:
    """What every benchmark on a model says first."""
    return {
        "benchmark": benchmark,
        "model": lm.name,
        "device": str(lm.device),
        "threads": torch.get_num_threads(),
    }


def print_result(result: Mapping[str, Any]) -> None:
    """The last line of a benchmark."""
    print(json.dumps(result))


def generation_slowed(lm: LanguageModel, edit: Edit, prompt: str, tokens: int, runs: int) -> dict[str, float]:
    """How much longer greedy generation takes with an edit beside the weights, which speaks on the prompt.

    The median seconds of `runs` generations without (`base_seconds`) and with it (`seconds`), which take turns; and
    `overhead`, the second over the first less 1.
    """
    times: dict[bool, list[float]] = {False: [], True: []}
    for run in range(2 * runs + 2):
        with edit.applied(lm) if run % 2 else nullcontext(), activated(lm) as seen:
            seconds, _ = timed(lambda: decode(lm, [lm.tokens(prompt)], tokens, stop=lambda _token: False))
            times[bool(run % 2)].append(seconds)
        assert seen.rows == ((True,) if run % 2 else ())
    base, with_entries = (statistics.median(times[which][1:]) for which in (False, True))
    return {"base_seconds": base, "seconds": with_entries, "overhead": with_entries / base - 1}
