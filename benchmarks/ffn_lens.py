"""The FFN lens beside the plain ways, in one run: triggers, values, attribution, knockout.

Trigger examples of all keys: the plain way is a forward of all layers over the same batches that looks at nothing. Over
so little text most neurons still meet new largest coefficients in most batches: over a long one the part that the lists
take is smaller. Values: all of them in words; `peak_memory_mb` is of the process so far, the model included.
Attribution: all heads, FFNs and neurons of a prompt, in forwards of the same prompt with its logits. Knockout: three
groups in windows around all layers; the plain way is one whole forward for each group and window.

    python benchmarks/ffn_lens.py [--tokens 8192] [--length 64] [--triggers 25] [--repeats 3]

The last line is a JSON object: `ratio` is plain / ours, the median of the repeats; `ratio_with_head` is the same for a
plain forward that also computes all logits, which the triggers do not need.
"""

import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import torch
from harness import Timing, about, in_turns, parser_of, print_result, summary, timed
from torch import Tensor

from corrigenda import Fact, LanguageModel, load
from corrigenda.forward.knockout import knocked_out
from corrigenda.forward.recording import stopping
from corrigenda.moments.text import Text
from corrigenda.runs.environment import peak_memory_mb
from locate import AttentionKnockout, AttentionKnockoutResult, logit_attribution, read_values
from locate.flow.knockout import positions_of
from locate.lens import triggers
from locate.lens.triggers import Triggers, trigger_examples
from locate.question import ask
from locate.windows import around

T = TypeVar("T")

FACT = Fact("The Eiffel Tower", "{} is located in the city of", "Rome", "Paris")


@torch.no_grad()
def plain(lm: LanguageModel, text: Text, head: bool) -> float:
    """Seconds of a forward over the text, in the batches that the triggers' pass has."""
    sequences = text.sequences(lm)
    rows = max(1, triggers.TOKENS // text.length)

    def forward() -> None:
        for start in range(0, len(sequences), rows):
            ids = torch.tensor(sequences[start : start + rows], device=lm.device)
            with stopping(lm, None if head else lm.n_layers - 1):
                lm.model(input_ids=ids, use_cache=False)

    return finished(lm, forward)[0]


def ours(lm: LanguageModel, text: Text, t: int, cache: Path) -> tuple[float, Triggers]:
    """Seconds of the triggers' pass, and what it found."""
    shutil.rmtree(cache / "triggers", ignore_errors=True)
    return finished(lm, lambda: trigger_examples(lm, text, t))


def values(lm: LanguageModel, cache: Path) -> dict[str, float]:
    """All values in words, by a cold cache; the fingerprint of the weights is known before."""
    shutil.rmtree(cache / "values", ignore_errors=True)
    return {"seconds": timed(lambda: read_values(lm))[0], "peak_memory_mb": peak_memory_mb()}


@torch.no_grad()
def attribution(lm: LanguageModel, repeats: int) -> dict[str, float]:
    """One prompt's attribution, in forwards of it."""
    batch = lm.batch([lm.tokens(FACT.statement)])
    rows = []
    for _ in range(repeats + 1):
        forward, _ = finished(lm, lambda: lm.model(input_ids=batch.input_ids, use_cache=False))
        seconds, found = finished(lm, lambda: logit_attribution(lm, FACT.statement))
        rows.append((forward, seconds))
    rows = rows[1:]  # the first warms up
    return {
        "forward_seconds": statistics.median(row[0] for row in rows),
        "ours_seconds": statistics.median(row[1] for row in rows),
        "in_forwards": statistics.median(row[1] / row[0] for row in rows),
        "difference": abs(found.total - found.logit),
    }


@torch.no_grad()
def plain_knockout(lm: LanguageModel, settings: AttentionKnockout) -> Tensor:
    """P(answer) for each group and window, (group, layer), one whole forward each."""
    question = ask(lm, FACT, "top")
    groups = positions_of(question)
    batch = lm.batch([question.ids])
    n, at = len(question.ids), question.predicting[0]
    probabilities = torch.zeros(len(settings.sources), lm.n_layers)
    for row, source in enumerate(settings.sources):
        edges = torch.zeros(1, n, n, dtype=torch.bool)
        for reader in groups[settings.reader]:
            edges[0, reader, list(groups[source])] = True
        for centre in range(lm.n_layers):
            with ExitStack() as stack:
                for layer in around(centre, settings.window, lm.n_layers):
                    stack.enter_context(knocked_out(lm, layer, edges))
                logits = lm.model(input_ids=batch.input_ids, use_cache=False).logits[0, at]
            probabilities[row, centre] = logits.float().softmax(-1)[question.answer_ids[0]]
    return probabilities


def knockout(lm: LanguageModel, repeats: int) -> dict[str, float]:
    """All windows of one fact, beside a whole forward for each."""
    settings = AttentionKnockout()

    def differ(expected: Tensor, result: AttentionKnockoutResult) -> float:
        return float((result.probabilities / expected - 1).abs().max())

    timings = [
        in_turns(
            lambda: finished(lm, lambda: plain_knockout(lm, settings))[1],
            lambda: finished(lm, lambda: settings.find(lm, FACT, "top"))[1],
            differ,
            1e-3,
            "knockout",
        )
        for _ in range(repeats)
    ]
    figures = summary(timings)
    del figures["ratio_smallest"]
    return figures


def finished(lm: LanguageModel, call: Callable[[], T]) -> tuple[float, T]:
    """As `timed`, until a GPU is done."""

    def wait() -> T:
        result = call()
        if lm.device.type == "cuda":
            torch.cuda.synchronize(lm.device)
        return result

    return timed(wait)


@torch.no_grad()
def check(lm: LanguageModel, text: Text, found: Triggers) -> float:
    """The largest difference, relative to the largest coefficient, from one neuron's list by brute force."""
    layer, neuron = lm.n_layers // 2, 0
    rows = []
    for sequence in text.sequences(lm):
        with lm.memory(layer).capture() as seen, stopping(lm, layer):
            lm.model(input_ids=torch.tensor([sequence], device=lm.device), use_cache=False)
        rows.append(seen.coefficients[0, triggers.FIRST : -1, neuron].float().cpu())
    every = torch.cat(rows)
    sizes = every.abs() if found.signed else every
    expected = sizes.sort(descending=True).values[: found.coefficients.shape[2]]
    kept = found.coefficients[layer, neuron]
    return float(((kept.abs() if found.signed else kept) - expected).abs().max() / expected[0].abs())


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--triggers", type=int, default=25)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    lm = load(options.model)
    text = Text("self", tokens=options.tokens, length=options.length)
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        os.environ["CORRIGENDA_CACHE"] = folder
        text.sequences(lm)
        plain(lm, text, head=False)  # warm up
        rows = []
        for _ in range(options.repeats):
            without, whole = plain(lm, text, head=False), plain(lm, text, head=True)
            seconds, found = ours(lm, text, options.triggers, cache)
            rows.append((without, whole, seconds))
            print(f"plain {without:.1f} s, with the head {whole:.1f} s, triggers {seconds:.1f} s", file=sys.stderr)
        difference = check(lm, text, found)
        in_words = values(lm, cache)
    if difference > 1e-3:
        raise SystemExit(f"the list of a neuron differs by {difference:.1e} of the largest coefficient")
    parts = {"values": in_words, "attribution": attribution(lm, 5), "knockout": knockout(lm, options.repeats)}
    result = {
        **about("ffn_lens", lm),
        "tokens": found.tokens.numel(),
        "neurons": found.coefficients.shape[0] * found.coefficients.shape[1],
        "triggers": options.triggers,
        "plain_with_head_seconds": statistics.median(row[1] for row in rows),
        **summary([Timing(without, seconds, difference) for without, _, seconds in rows]),
        "ratio_with_head": statistics.median(row[1] / row[2] for row in rows),
        "peak_memory_mb": peak_memory_mb(),
        **parts,
    }
    print_result(result)


if __name__ == "__main__":
    main()
