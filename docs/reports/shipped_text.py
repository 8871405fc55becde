"""corrigenda/data/shipped.txt.xz: the text that ships, for second moments, thresholds and what stands before a fact.

    python docs/reports/shipped_text.py sample [--model qwen2.5-coder-1.5b] [--batches 0 20]
    python docs/reports/shipped_text.py write [--written one.txt two.txt] [--facts counterfact.json zsre.json]

Part of it is sampled from embedded models (short texts of many kinds on many topics, in batches that are kept), part
(`--written`) was written for this project with a large language model; nobody else's text is in it. The second step
cleans them and adds both to what ships, in a drawn order, so that any beginning has all kinds. Left out is a text that
says nearly the same as an earlier one, or that names both the subject and an object of a fact of `--facts`.
"""

import argparse
import itertools
import json
import lzma
import random
import re
from functools import partial
from pathlib import Path
from typing import Any

import torch
from options import OUTPUTS, ROOT

from corrigenda import Fact, load, read_facts
from corrigenda.forward.generation import decode, sampler
from corrigenda.system.files import write_file, write_json
from corrigenda.system.progress import track
from corrigenda.text.words import places

SHIPPED = ROOT / "corrigenda" / "data" / "shipped.txt.xz"
ROWS = 48  # texts sampled at once
TOKENS = 380  # the most of one text
TOP_K = 40  # drawn are the most likely tokens alone
NGRAM = 8  # a text of which a tenth of so many words in a row stand in earlier ones, or in itself again, is left out
PLAIN = re.compile(r"[\x20-\x7e\n\u00c0-\u017f]*")  # the letters and punctuation that may stand in a text
ASKED = ROOT / "docs" / "data" / "shipped-text.txt"
"""What a model is asked for: kinds of texts, a line each, and topics."""


def sample(model: str, folder: Path, batches: range) -> None:
    """Samples texts, a file a batch."""
    missing = [i for i in batches if not (folder / f"{i}.json").is_file()]
    if not missing:
        return
    kinds, topics = ASKED.read_text(encoding="utf-8").strip().split("\n\n")
    pairs = itertools.product(kinds.split("\n"), re.split(r"[|\n]", topics))  # every kind about every topic
    requests = [kind.format(topic) for kind, topic in pairs]
    random.Random(0).shuffle(requests)
    lm = load(model, dtype="bfloat16")
    chat_prompt: Any = partial(lm.tokenizer.apply_chat_template, add_generation_prompt=True, return_dict=True)
    for batch in track(missing, "Sampling text"):
        asked = requests[batch * ROWS : (batch + 1) * ROWS]
        chats = [[{"role": "user", "content": f"{one} Plain prose only, no headings and no lists."}] for one in asked]
        prompts = [chat_prompt(chat)["input_ids"] for chat in chats]
        choose = sampler(torch.Generator().manual_seed(batch), top_k=TOP_K)
        texts = [lm.tokenizer.decode(added, skip_special_tokens=True) for added in decode(lm, prompts, TOKENS, choose)]
        write_json(folder / f"{batch}.json", {"model": model, "texts": dict(zip(asked, texts, strict=True))})


def cleaned(text: str) -> str:
    """The plain paragraphs of a text, to its last whole sentence; empty where little is left."""
    paragraphs = []
    for paragraph in text.split("\n"):
        plain = re.sub(r"\*+|`+|^#+ .*$", "", paragraph).strip()
        plain = plain.translate({0x2019: "'", 0x2018: "'", 0x201C: '"', 0x201D: '"', 0x2013: "-", 0x2014: "-"})
        if len(plain.split()) >= 12 and not re.match(r"[-\d(]|[A-Z][\w ]{0,20}:", plain):
            paragraphs.append(" ".join(plain.split()))
    whole = re.match(r".*[.!?][\"']?(?=\s|$)", "\n".join(paragraphs), re.DOTALL)
    found = whole[0] if whole else ""
    return found if PLAIN.fullmatch(found) and len(found.split()) >= 60 and "AI language model" not in found else ""


def written(path: Path) -> list[str]:
    """The texts of a file, as they are."""
    texts = path.read_text(encoding="utf-8").strip().split("\n\n")
    for number, text in enumerate(texts, 1):
        if odd := sorted({*PLAIN.sub("", text)}):
            raise SystemExit(f"{path}, text {number}: write plain letters in place of {' '.join(odd)}")
    return texts


def names(text: str, fact: Fact) -> bool:
    """Whether a text has a fact's subject and one of its objects, as whole words."""
    objects = [one for one in (fact.target_new, fact.target_true) if one]
    named = any(one in text and places(text, one) for one in objects)
    return named and fact.subject in text and bool(places(text, fact.subject))


def write(folder: Path, files: list[Path], facts: list[Fact]) -> None:
    """Adds texts that were written or sampled to what ships, but for those that say nothing new, or a fact."""
    shipped = lzma.decompress(SHIPPED.read_bytes()).decode().strip().split("\n\n") if SHIPPED.is_file() else []
    batches = sorted(folder.glob("*.json"), key=lambda path: int(path.stem))
    sampled = [text for path in batches for text in json.loads(path.read_text(encoding="utf-8"))["texts"].values()]
    seen: set[tuple[str, ...]] = set()
    kept: list[str] = []
    for text in [*itertools.chain(*map(written, files)), *shipped, *map(cleaned, sampled)]:
        words = text.split()
        rows = [tuple(words[i : i + NGRAM]) for i in range(len(words) - NGRAM + 1)]
        grams = {*rows}
        new = rows and len(grams & seen) < 0.1 * len(grams) and len(grams) > 0.9 * len(rows)
        if new and not any(names(text, fact) for fact in facts):
            kept.append(text)
        seen |= grams
    random.Random(0).shuffle(kept)
    content = "\n\n".join(kept) + "\n"
    write_file(SHIPPED, lambda path: path.write_bytes(lzma.compress(content.encode(), preset=9 | lzma.PRESET_EXTREME)))
    print(f"{SHIPPED}: {len(kept)} texts, {len(content.split())} words, {SHIPPED.stat().st_size} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description="the text that ships")
    parser.add_argument("step", choices=("sample", "write"))
    parser.add_argument("--model", default="qwen2.5-coder-1.5b")
    parser.add_argument("--batches", type=int, nargs=2, default=(0, 20), help="the first, and one after the last")
    parser.add_argument("--folder", type=Path, default=OUTPUTS / "shipped_text")
    parser.add_argument("--written", type=Path, nargs="*", default=[], help="files of texts that were written")
    parser.add_argument("--facts", type=Path, nargs="*", default=[], help="files of facts that no text may state")
    options = parser.parse_args()
    if options.step == "sample":
        sample(options.model, options.folder, range(*options.batches))
    else:
        facts = [fact for path in options.facts for fact in read_facts(path, on_error="skip")]
        write(options.folder, options.written, facts)


if __name__ == "__main__":
    main()
