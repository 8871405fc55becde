"""What llama.cpp answers for docs/serving.md: with adapters, with edited files, and how fast it is."""

import ctypes
import gc
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import numpy as np
from serving_edits import MODEL, TOKENS, Asked, edits_of, facts_of, questions

from corrigenda.edits.export.gguf_file import copy_with
from corrigenda.models import embedded
from corrigenda.models.gguf_reader import LeanReader

CONTEXT = 512
SPEED_TOKENS, SPEED_TIMES = 48, 8
SIDES = ("without", "with")
OWN_QUANTIZE = gguf.quants.quantize


def model_file(work: Path) -> Path:
    """The model's own GGUF file (Q4_K_M), fetched once."""
    path = work / f"{MODEL}.gguf"
    return path if path.is_file() else embedded.fetch_file(MODEL, work)


class Llama:
    """A model in llama.cpp's server, on one thread, with files of adapters: each request says which of them acts."""

    def __init__(self, model: Path, adapters: Sequence[Path] = ()) -> None:
        import xllamacpp

        settings = xllamacpp.CommonParams()
        settings.model.path, settings.n_ctx, settings.n_parallel = str(model), CONTEXT, 1
        settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
        loras = []
        for path in adapters:
            lora = xllamacpp.CommonAdapterLoraInfo()
            lora.path, lora.scale = str(path), 1.0
            loras.append(lora)
        settings.lora_adapters, settings.lora_init_without_apply = loras, True
        self.server, self.n_adapters = xllamacpp.Server(settings), len(loras)

    def ask(self, prompt: str, adapter: int | None = None, tokens: int = TOKENS) -> dict[str, Any]:
        """What the server replies: greedy, by one adapter or by none."""
        scales = [{"id": number, "scale": float(number == adapter)} for number in range(self.n_adapters)]
        asked = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "cache_prompt": False, "lora": scales}
        reply = self.server.handle_completions(asked)
        if "choices" not in reply:
            raise RuntimeError(f"llama.cpp: {str(reply)[:300]}")
        return dict(reply)

    def answers(self, prompts: Sequence[str], adapter: int | None = None) -> list[str]:
        """The answers to some prompts."""
        return [self.ask(prompt, adapter)["choices"][0]["text"] for prompt in prompts]


def unedited(group: str, work: Path, data: Path) -> Asked:
    """The answers of the model's own file."""
    llama = Llama(model_file(work))
    return [[llama.answers(questions(fact))] for fact in facts_of(data)]


def with_adapter(group: str, work: Path, data: Path, halved: bool = False) -> Asked:
    """The answers of the model's own file with each edit of a group as an adapter."""
    base, paths, edits = model_file(work), [], list(edits_of(group, work, data))
    for edit, _, folder in edits:
        place = folder / ("half" if halved else "gguf")
        largest = max(int(left.shape[1]) for left, _ in edit._factors().values())
        edit.to_gguf_adapter(place, rank=largest // 2 if halved else None, base=base)
        paths.append(place / "adapter.gguf")
    llama = Llama(base, paths)
    return [[llama.answers(questions(fact), n) for fact in facts] for n, (_, facts, _) in enumerate(edits)]


def with_file(group: str, work: Path, data: Path, dtype: Any, anew: bool = False) -> Asked:
    """The answers of the model's file with the edited tensors in it; `anew`: and all others quantised again."""
    found: Asked = []
    for number, (edit, facts, _) in enumerate(edits_of(group, work, data)):
        path = work / group / f"{number:02}.gguf"
        path.unlink(missing_ok=True)
        with quantised_by_llama_cpp():
            edit.to_gguf(path, dtype=dtype, base=model_file(work))
            if anew:
                quantise_all(path, model_file(work))
        llama = Llama(path)
        found.append([llama.answers(questions(fact)) for fact in facts])
        del llama
        gc.collect()
        path.unlink()
    return found


@cache
def quantiser() -> Any:
    """`ggml_quantize_chunk` of the llama.cpp that answers."""
    import xllamacpp.xllamacpp as module

    found = ctypes.CDLL(module.__file__).ggml_quantize_chunk
    whole, place = ctypes.c_int64, ctypes.c_void_p
    found.argtypes, found.restype = [ctypes.c_int, place, place, whole, whole, whole, place], ctypes.c_size_t
    return found


def quantize(data: np.ndarray, kind: Any) -> np.ndarray:
    """As `gguf.quants.quantize`, by llama.cpp where that cannot; without an importance matrix."""
    try:
        return OWN_QUANTIZE(data, kind)
    except NotImplementedError:
        rows = np.ascontiguousarray(data, np.float32)
        block, size = gguf.GGML_QUANT_SIZES[kind]
        made = np.empty((*rows.shape[:-1], rows.shape[-1] // block * size), np.uint8)
        n = rows.size // rows.shape[-1]
        written = quantiser()(int(kind), rows.ctypes.data, made.ctypes.data, 0, n, rows.shape[-1], None)
        assert written == made.nbytes, (written, made.nbytes)
        return made


@contextmanager
def quantised_by_llama_cpp() -> Iterator[None]:
    """The export writes all types inside the block."""
    with patch("gguf.quants.quantize", quantize):
        yield


def quantise_all(path: Path, like: Path) -> None:
    """Quantises every tensor of a file anew, from float16, to the types of another file: as a merged model is."""
    kinds = {tensor.name: tensor.tensor_type for tensor in LeanReader(like).tensors}
    reader, whole = LeanReader(path), path.with_suffix(".anew")

    def rows(tensor: Any) -> Iterator[bytes]:
        for begin in range(0, len(tensor.data), 256):
            read = gguf.quants.dequantize(np.ascontiguousarray(tensor.data[begin : begin + 256]), tensor.tensor_type)
            yield quantize(read.astype(np.float16).astype(np.float32), kinds[tensor.name]).tobytes()

    new = {one.name: (kinds[one.name], rows(one)) for one in reader.tensors if kinds[one.name].name != "F32"}
    copy_with(new, {}, path, reader, whole)
    whole.replace(path)


def speed(group: str, work: Path, data: Path) -> dict[str, list[float]]:
    """Tokens a second with an edit's adapter and without, in turns, so that the machine's load is the same for both."""
    [(_, facts, folder)] = edits_of(group, work, data)
    llama = Llama(model_file(work), [folder / "gguf" / "adapter.gguf"])
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(SPEED_TIMES):
        for side in SIDES if number % 2 else SIDES[::-1]:
            reply = llama.ask(facts[number].statement, 0 if side == "with" else None, SPEED_TOKENS)
            found[side].append(float(reply["timings"]["predicted_per_second"]))
    return found


MEASURED = """
import json, resource, sys, time
from corrigenda.__main__ import main
begun = time.perf_counter()
sys.argv[0] = "corrigenda"
try:
    main()
finally:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": time.perf_counter() - begun, "megabytes": peak / 1024}))
"""


def export_costs(group: str, work: Path, data: Path) -> dict[str, dict[str, float]]:
    """By form, the seconds and the peak memory of the command, and the size of what it writes."""
    [(_, _, folder)] = edits_of(group, work, data)
    found = {}
    for form, name in {"gguf-adapter": "export", "gguf": "export.gguf"}.items():
        place = work / group / name
        words = ["export", str(folder), f"to={place}", f"form={form}", f"model.name={model_file(work)}"]
        done = subprocess.run([sys.executable, "-c", MEASURED, *words], check=True, capture_output=True, text=True)
        written = place / "adapter.gguf" if place.is_dir() else place
        found[form] = {**json.loads(done.stdout.splitlines()[-1]), "bytes": written.stat().st_size}
        for path in [*place.iterdir()] if place.is_dir() else [place]:
            path.unlink()
    return found
