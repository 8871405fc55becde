"""What lies beside the weights, timed: attached entries, entries behind a gate, statements that are looked up."""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import replace
from typing import Any

import torch
from harness import generation_slowed, timed

from corrigenda import AttachedEdit, LanguageModel, Origin, RetrievalEdit, ScopedEdit
from corrigenda.edits.attached import AttachedLayer, viewed
from corrigenda.edits.encoders import STATES, encoder_named
from corrigenda.edits.gate import Gate
from corrigenda.indices.kinds import Kind
from corrigenda.knowledge.attached import EXACT, LARGE, coefficients_of

LAYER = 6
PROMPT = "The Eiffel Tower is located in the city of"
OTHER = "My sister plays the piano, and my brother plays the"


def attached_overhead(lm: LanguageModel, n: int, width: int, tokens: int, runs: int) -> dict[str, Any]:
    """How much longer generation takes with n drawn entries at a layer, of which one speaks on the prompt."""
    memory, draw = lm.memory(LAYER), torch.Generator().manual_seed(3)
    coefficients = coefficients_of(lm, [lm.tokens(PROMPT)], [LAYER])[LAYER]
    mean, projection = coefficients.mean(0), torch.randn(memory.d_ffn, width, generator=draw)
    keys = torch.nn.functional.normalize(torch.randn(n, width, generator=draw), dim=1)
    keys[0] = viewed(coefficients, mean, projection)[4]
    values = torch.zeros(1, memory.d_model).expand(n, -1).contiguous()
    values[0] = 1e-3
    kind: Kind = "exact" if n <= EXACT else LARGE
    parts = (mean, projection, keys, values, torch.full((n,), 0.95))
    layer = AttachedLayer(memory.layer, memory.path, *parts, index=kind)
    edit = AttachedEdit.of(Origin(lm.name, lm.fingerprint, "benchmark"), [layer])
    begin = time.perf_counter()
    edit.apply(lm)
    edit.revert(lm)
    applied = time.perf_counter() - begin
    slowed = generation_slowed(lm, edit, PROMPT, tokens, runs)
    result = {"entries": n, "index": kind, **slowed, "apply_seconds": applied}
    print(json.dumps(result), file=sys.stderr)
    return result


def scoped_overhead(lm: LanguageModel, n: int, tokens: int, runs: int) -> dict[str, Any]:
    """The same with n entries behind a gate, with drawn keys but for the prompt's own."""
    gate, draw = drawn_gate(lm), torch.Generator().manual_seed(3)
    layer = gate.layers[-1]
    memory = lm.memory(layer)
    keys = torch.nn.functional.normalize(torch.randn(n, gate.width, generator=draw), dim=1)
    keys[0] = gate.of_prompts(lm, lm.batch([lm.tokens(PROMPT)]))[0]
    values = torch.zeros(1, memory.d_model).expand(n, -1).contiguous()
    values[0] = 1e-3
    entries = gate, keys, torch.arange(n), values, names_from(n), gate.threshold
    edit = ScopedEdit(Origin(lm.name, lm.fingerprint, "benchmark"), layer, memory.path, *entries)
    result = {"entries": n, **generation_slowed(lm, edit, PROMPT, tokens, runs)}
    print(json.dumps(result), file=sys.stderr)
    return result


def lookup_seconds(lm: LanguageModel, n: int, encoder: str, runs: int) -> dict[str, Any]:
    """What it takes to look up one of n statements: before its prompt, before another, and among all."""
    gate, draw = drawn_gate(lm) if encoder == STATES else None, torch.Generator().manual_seed(3)
    embed = encoder_named(encoder, gate)
    own = embed(lm, [PROMPT])
    keys = torch.cat([own, torch.nn.functional.normalize(torch.randn(n - 1, own.shape[1], generator=draw), dim=1)])
    origin, texts = Origin(lm.name, lm.fingerprint, "benchmark"), tuple(f"Statement {number}. " for number in range(n))
    edit = RetrievalEdit(origin, texts, names_from(n), keys, 0.95, encoder=encoder, gate=gate)
    every = replace(edit, by_subject=False)
    calls = {
        "encode": lambda: embed(lm, [PROMPT]),
        "named": lambda: edit.before(lm, PROMPT),
        "silent": lambda: edit.before(lm, OTHER),
        "all": lambda: every.before(lm, OTHER),
    }
    assert (calls["named"](), calls["silent"](), calls["all"]()) == (texts[0], "", "")  # each is ready now
    found = {f"{name}_seconds": statistics.median(timed(call)[0] for _ in range(runs)) for name, call in calls.items()}
    result = {"statements": n, "encoder": encoder, **found}
    print(json.dumps(result), file=sys.stderr)
    return result


def drawn_gate(lm: LanguageModel) -> Gate:
    """A gate of two layers, of random numbers."""
    layer, d_model = round(0.75 * lm.n_layers), lm.memory(0).d_model
    reads = torch.randn(2 * d_model, 128, generator=torch.Generator().manual_seed(4))
    return Gate(lm.name, lm.fingerprint, (layer // 2, layer), torch.zeros(2 * d_model), (reads,), 0.95)


def names_from(n: int) -> tuple[tuple[str, ...], ...]:
    """Made-up subjects that begin with the same word; the first is the prompt's."""
    return (("The Eiffel Tower",), *((f"Eiffel {number}",) for number in range(1, n)))
