"""Seconds and peak memory of each part of the work on models of several sizes, with random weights.

The shapes are those of SmolLM2-135M, Qwen2.5-0.5B, Qwen2.5-1.5B and Llama-3-8B. A model with random weights is written
to a temporary folder, shard by shard, as safetensors; then it is loaded, traced, edited and scored as any other. What
an edit is worth cannot be seen on random weights, and nothing is said of it.

    python benchmarks/sizes.py [--sizes 0.1,0.5] [--dtype bfloat16] [--editors rome,memit] [--json sizes.json]

Each size runs in a process of its own. Its parts:

    load          the model from the folder
    fingerprint   the hash of all weights
    trace         causal tracing of one fact, by the gradient ("attribution"): no cell is run by itself
    statistics    the second moments of the layers that are edited, over `--tokens` tokens: far fewer than an edit needs
                  (8 for each coefficient), so the seconds are those of so many, and the memory is that of any number
    solve         the target values, `--steps` steps
    update        all else of an edit, and applying it
    score         the evaluation without and with the edit; free answers are a few tokens long
    revert        taking the edit back

For every part `memory_mb` is the most that was held while it ran: on the GPU if there is one, else in RAM, where pages
of the weights' files count that are mapped and not copied. `weights_mb` is the size of the weights in their precision.
Prints a JSON object as its last line.
"""

import argparse
import dataclasses
import gc
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from harness import print_result
from meter import Meter

import editing.locate_then_edit.rome
import editing.locate_then_edit.solved
from corrigenda import Fact, LanguageModel, load
from corrigenda.moments.text import Text
from corrigenda.runs.environment import machine, memory_mb, versions
from editing import Memit, Rome, ValueSettings
from editing.locate_then_edit.closed_form import ClosedForm
from eval import EvalSettings, evaluate
from locate.tracing.causal_trace import CausalTrace
from locate.tracing.noise import Noise


def shape(hidden: int, layers: int, heads: int, groups: int, ffn: int, vocabulary: int, tied: bool) -> dict[str, Any]:
    """A configuration, as `LlamaConfig` takes it; `groups` are key-value heads."""
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": ffn,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
    }


SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "tiny": ("a test's", shape(32, 4, 4, 2, 48, 128, True)),
    "0.1": ("SmolLM2-135M", shape(576, 30, 9, 3, 1536, 49152, True)),
    "0.5": ("Qwen2.5-0.5B", shape(896, 24, 14, 2, 4864, 151936, True)),
    "1.5": ("Qwen2.5-1.5B", shape(1536, 28, 12, 2, 8960, 151936, True)),
    "8": ("Llama-3-8B", shape(4096, 32, 32, 8, 14336, 128256, False)),
}
"""By size in billions of parameters whose shape it is, and the configuration."""

SHARD = 2**30
"""Bytes of one file of the weights."""
CITIES = ("Rome", "Paris", "London", "Berlin", "Madrid", "Vienna", "Oslo", "Lisbon", "Dublin", "Prague")
PREFIXES = ("", "The weather was fine on that day . ", "He had written a long letter to his sister . ")


def facts(count: int) -> list[Fact]:
    """Facts of one relation, each with a paraphrase, two prompts about its neighbours and one about something else."""
    found = []
    for number in range(count):
        new, true = CITIES[number % 10], CITIES[(number + 1) % 10]
        found.append(
            Fact(
                f"The tower of number {number}",
                "{} is located in the city of",
                new,
                true,
                paraphrases=("The place where one finds {} is",),
                neighbourhood=("The bridge of number 7 is located in the city of", "The market is in the city of"),
                id=str(number),
            )
        )
    return found


def write_model(folder: Path, size: str, dtype: torch.dtype) -> None:
    """Writes a model with random weights, never holding more than a shard and a tensor of them."""
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, LlamaConfig

    sizes = SHAPES[size][1]
    config = LlamaConfig(**sizes, bos_token_id=1, eos_token_id=2, pad_token_id=0, dtype=dtype)
    config.architectures = ["LlamaForCausalLM"]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    generator = torch.Generator().manual_seed(0)
    shard: dict[str, torch.Tensor] = {}
    index: dict[str, str] = {}
    written = total = 0

    def flush() -> None:
        nonlocal written
        name = f"model-{written:05d}.safetensors"
        save_file(shard, folder / name, {"format": "pt"})
        index.update(dict.fromkeys(shard, name))
        shard.clear()
        written += 1

    for name, parameter in model.named_parameters():  # tied weights once
        if parameter.ndim == 1:
            shard[name] = torch.ones(parameter.shape, dtype=dtype)
        else:
            shard[name] = torch.empty(parameter.shape, dtype=dtype).normal_(0, 0.02, generator=generator)
        total += shard[name].nbytes
        if sum(tensor.nbytes for tensor in shard.values()) >= SHARD:
            flush()
    flush()
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index}), encoding="utf-8"
    )
    write_tokenizer(folder, sizes["vocab_size"])


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """Writes a tokenizer with a token for each word that is used here, and with made-up ones."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    texts = [text for fact in facts(16) for text in (fact.statement, *fact.paraphrases, *fact.neighbourhood)]
    words = dict.fromkeys([*(word for text in (*texts, *PREFIXES) for word in text.split()), *CITIES])
    known = ["<pad>", "<s>", "</s>", "<unk>", *words]
    known += [f"w{number}" for number in range(len(known), vocabulary)]
    plain = Tokenizer(WordLevel({word: number for number, word in enumerate(known)}, unk_token="<unk>"))
    plain.pre_tokenizer = Whitespace()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=plain, **special).save_pretrained(folder)


def run(size: str, options: argparse.Namespace) -> dict[str, Any]:
    """All parts on one size, in this process."""
    title, sizes = SHAPES[size]
    dtype = getattr(torch, options.dtype)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder)))
        stack.enter_context(patch.dict(os.environ, {"CORRIGENDA_CACHE": str(folder / "cache")}))
        write_model(folder / "model", size, dtype)
        gc.collect()
        meter = Meter()
        before = memory_mb()
        with meter.part("load"):
            lm = load(folder / "model", dtype=options.dtype)
        with meter.part("fingerprint"):
            _ = lm.fingerprint
        asked = facts(options.facts)
        if not options.without_trace:
            trace = CausalTrace(method="attribution", noise=Noise(samples=2, subjects=(asked[0].subject,)))
            with meter.part("trace"):
                trace.find(lm, asked[0], answer="top")
        text = _text(folder / "text.txt", options.tokens, sizes["vocab_size"])
        for editor in _editors(options, text):
            _edit_and_score(lm, editor, asked, meter, options)
        weights = sum(parameter.nbytes for parameter in lm.model.parameters())
        count = sum(parameter.numel() for parameter in lm.model.parameters())
        return {
            "shape_of": title,
            "parameters": count,
            "dtype": options.dtype,
            "device": str(lm.device),
            "weights_mb": round(weights / 2**20),
            "memory_before_mb": None if before is None else round(before),
            "peak_memory_mb": _largest(meter),
            "parts": meter.parts,
        }


def _largest(meter: Meter) -> float | None:
    known = [part["memory_mb"] for part in meter.parts.values() if "memory_mb" in part]
    return max(known) if known else None


def _text(path: Path, tokens: int, vocabulary: int) -> Text:
    """A file of random words with at least so many tokens."""
    drawn = torch.randint(4, vocabulary, (tokens + 64,), generator=torch.Generator().manual_seed(0))
    path.write_text(" ".join(f"w{number}" for number in drawn.tolist()), encoding="utf-8")
    return Text(source=str(path), tokens=tokens, length=64)


def _editors(options: argparse.Namespace, text: Text) -> list[Rome | ClosedForm]:
    """The editors asked for; no target is confident early, and no size of an update is refused."""
    value = ValueSettings(steps=options.steps, early_stop_loss=-1.0)
    made: dict[str, Rome | ClosedForm] = {
        "rome": Rome(
            prefixes=PREFIXES, value=value, text=text, tokens_per_coefficient=0, flag_norm=1e9, refuse_norm=1e9
        ),
        "memit": Memit(
            prefixes=PREFIXES,
            value=dataclasses.replace(value, clamp_norm_factor=0.75),
            text=text,
            tokens_per_coefficient=0,
            keep_targets=False,
            refuse_norm=1e9,
        ),
    }
    return [made[name] for name in options.editors.split(",") if name]


def _edit_and_score(
    lm: LanguageModel, editor: Rome | ClosedForm, asked: Sequence[Fact], meter: Meter, options: argparse.Namespace
) -> None:
    """One edit, of one fact by ROME and of all by MEMIT, applied, scored and taken back."""
    name = editor.name
    chosen = asked[:1] if isinstance(editor, Rome) else asked
    settings = EvalSettings(
        max_new_tokens=3, preservation_tokens=3, fluency_tokens=3, perplexity_windows=3, perplexity_window=32
    )
    with meter.part(f"{name}: statistics"):
        editor.prepare(lm)
    with ExitStack() as stack:
        for module in (editing.locate_then_edit.rome, editing.locate_then_edit.solved):
            solve = meter.within(f"{name}: solve", module.solve_target_values)
            stack.enter_context(patch.object(module, "solve_target_values", solve))
        with meter.part(f"{name}: update"):
            edit = editor.edit(lm, chosen)
            edit.apply(lm)
    if not options.without_score:
        with meter.part(f"{name}: score"):
            evaluate(lm, chosen, settings)
    with meter.part(f"{name}: revert"):
        edit.revert(lm)


def main() -> None:
    """Runs the sizes and prints what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="0.1,0.5", help=f"of {', '.join(SHAPES)} (billions of parameters)")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--editors", default="rome,memit")
    parser.add_argument("--facts", type=int, default=4, help="facts that MEMIT edits; ROME edits the first")
    parser.add_argument(
        "--steps",
        type=int,
        default=5,
        help="steps of a target's solve; a real edit takes 20 (ROME) or at most 40 (MEMIT)",
    )
    parser.add_argument("--tokens", type=int, default=512, help="tokens of the second moments")
    parser.add_argument("--folder", type=Path, help="where the temporary models go: 16 GB for 8 billion parameters")
    parser.add_argument("--json", type=Path, help="the file to write besides")
    parser.add_argument("--without-trace", action="store_true")
    parser.add_argument("--without-score", action="store_true")
    parser.add_argument("--here", action="store_true", help="one size in this process, as a run of several starts it")
    options = parser.parse_args()
    sizes = [size.strip() for size in options.sizes.split(",")]
    unknown = [size for size in sizes if size not in SHAPES]
    if unknown:
        raise SystemExit(f"no such size: {', '.join(unknown)}; there are {', '.join(SHAPES)}")
    warnings.simplefilter("ignore", UserWarning)  # of few tokens, and of what random weights do
    found = {size: run(size, options) if options.here else _run_apart(size) for size in sizes}
    result = {
        "benchmark": "sizes",
        "note": f"random weights; second moments over {options.tokens} tokens only; {options.steps} steps of a solve",
        "machine": machine(),
        "versions": versions(),
        "facts": options.facts,
        "steps": options.steps,
        "tokens": options.tokens,
        "sizes": found,
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print_result(result)


def _run_apart(size: str) -> dict[str, Any]:
    """One size in a process of its own, so that nothing of another is in its memory."""
    print(f"{size} ({SHAPES[size][0]})", file=sys.stderr)
    asked = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:], "--sizes", size, "--here"]
    here = os.pathsep.join(filter(None, [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(asked, env=os.environ | {"PYTHONPATH": here}, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return {"failed": f"exit status {done.returncode}"}
    sizes: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])["sizes"]
    return sizes[size]


if __name__ == "__main__":
    main()
