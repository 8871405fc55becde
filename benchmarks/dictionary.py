"""The forward of a dictionary of features beside the plain formula, and beside the FFN that it stands for, in one run.

Both ways read the states of the same tokens of the text that ships, and are compared before they are timed: what fires,
and y. The plain way computes ReLU over all scores, TopK by `torch.topk`, and takes the rows of the decoder
that count. The dictionaries (an autoencoder of the FFN's output, and a transcoder with a skip connection) have the
shapes of `corrigenda dictionary`, and drawn rows. Processor seconds of one thread; the ways take turns.

    python benchmarks/dictionary.py [--layer 6] [--tokens 2048] [--repeats 15]

The last line is a JSON object. By dictionary, the seconds are the least of the repeats (what else runs on the machine
only adds to them), `ratio` is plain / ours, `plain_in_ffns` and `in_ffns` the two ways / the FFN.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from harness import about, parser_of, print_result, relative
from torch import Tensor
from torch.nn.functional import embedding_bag, linear, normalize

from corrigenda import LanguageModel, load
from corrigenda.dictionaries.dictionary import FIRST, FeatureDictionary
from corrigenda.moments.text import Text
from locate.features.states import batches, ffn_states

LENGTH, TIMES, K = 64, 8, 32


def plain(one: FeatureDictionary, x: Tensor) -> Tensor:
    """Y by the formula, (n, d_model)."""
    assert one.k is not None
    scores = linear(x - one.decoder_bias if one.centred else x, one.encoder, one.encoder_bias).relu()
    activations, places = scores.topk(one.k, sorted=False)
    y = embedding_bag(places, one.decoder, per_sample_weights=activations, mode="sum") + one.decoder_bias
    return y if one.skip is None else y + linear(x, one.skip)


def drawn(lm: LanguageModel, layer: int, output: Tensor) -> dict[str, FeatureDictionary]:
    """The dictionaries: an autoencoder, and a transcoder with a skip connection."""
    width = output.shape[1]
    draw = torch.Generator().manual_seed(0)
    rows = normalize(torch.randn(TIMES * width, width, generator=draw), dim=1).to(lm.device)
    none, mean = torch.zeros(TIMES * width, device=lm.device), output.mean(0)
    skip = (torch.randn(width, width, generator=draw) / width).to(lm.device)
    return {
        "autoencoder": FeatureDictionary(layer, rows, none, rows.clone(), mean, k=K, centred=True),
        "transcoder": FeatureDictionary(layer, rows, none, rows.clone(), mean, k=K, skip=skip, reads="input"),
    }


def compared(one: FeatureDictionary, x: Tensor) -> dict[str, float]:
    """How far the two ways are apart: where the same features fire, and at how many rows others do, which are ties.

    Raises:
        SystemExit: the two ways differ.
    """
    scores = one.scores(x)
    kept, found = scores * (scores >= scores.topk(K).values[:, -1:]), one.encode(x)
    same = ((kept > 0) == (found > 0)).all(1)
    difference = max(relative(kept[same], found[same]), relative(plain(one, x)[same], one(x)[same]))
    others = int((~same).sum())
    if not (difference <= 1e-5 and others <= len(x) / 500):
        raise SystemExit(f"the two ways differ by {difference:.1e}, and at {others} rows other features fire")
    return {"largest_difference": difference, "rows_of_other_features": others}


def seconds(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Processor seconds of each way, which take turns; the first turn warms up."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats + 1):
        for name, way in ways.items():
            begin = time.process_time()
            way()
            found[name].append(time.process_time() - begin)
    return {name: times[1:] for name, times in found.items()}


@torch.no_grad()
def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--layer", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lm = load(options.model)
    layer = lm.architecture.numbered(options.layer)
    texts = Text("shipped", -(-options.tokens // (LENGTH - FIRST)) * LENGTH, LENGTH).sequences(lm)
    states = [ffn_states(lm, layer, lm.batch(some)) for some in batches(texts)]
    given, output = (torch.cat([each[:, FIRST:].flatten(0, 1) for each in side]) for side in zip(*states, strict=True))
    given, output = given[: options.tokens].float(), output[: options.tokens].float()
    result: dict[str, Any] = {**about("dictionary", lm), "layer": layer, "tokens": len(given), "k": K}
    if (ffn := lm.architecture.ffn(layer)) is None:
        raise SystemExit(f"{lm.name} has no module that is a whole FFN")
    ffn = ffn.float()
    for name, one in drawn(lm, layer, output).items():
        x = one.read_of(given, output)
        difference = compared(one, x)
        ways = {"ffn": lambda: ffn(given[None]), "plain": partial(plain, one, x), "ours": partial(one, x)}
        found = {way: min(times) for way, times in seconds(ways, options.repeats).items()}
        result[name] = {
            **{f"{way}_seconds": each for way, each in found.items()},
            "ratio": found["plain"] / found["ours"],
            "plain_in_ffns": found["plain"] / found["ffn"],
            "in_ffns": found["ours"] / found["ffn"],
            **difference,
        }
    print_result(result)


if __name__ == "__main__":
    main()
