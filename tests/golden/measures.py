"""Golden values of what measures and keeps edits: metrics, protocols, verification, tables, bases, exports."""

from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from unittest.mock import patch

import made_runs
import sequences
import server_stub
import torch
from golden.made import FACTS, FULL, PROMPTS, SCORES, answers, editor, effect, model
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import eval as evaluation
from corrigenda import Fact, KnowledgeBase, LanguageModel
from corrigenda.data import FactSet
from corrigenda.knowledge.attached import Attached
from corrigenda.knowledge.plan import Plan
from corrigenda.knowledge.retrieval import measure_retrieval
from corrigenda.knowledge.unfolding import unfold
from corrigenda.moments.text import Text
from corrigenda.runs.folder import RunFolder
from corrigenda.runs.store import Store, StoredRun
from editing import steer
from editing.knowledge.how import how_named, how_of, ways
from eval import RealUse
from eval.judge import Judge
from eval.leaderboard import leaderboard
from eval.metrics import RUN_FIGURES
from eval.verification.report import report_of
from eval.verification.verify import verify

LIST = FactSet("golden", FACTS)


def metrics(folder: Path) -> Any:
    """Everything that is measured of an edit: each fact's records and values, and their summary."""
    lm = model()
    facts = [*FACTS, replace(FACTS[1], id="erased", target_new=None)]
    unedited = evaluation.evaluate(lm, facts, FULL)
    with editor("rome").edit(lm, FACTS[:3]).applied(lm), server_stub.running() as server:
        server.reply = lambda prompt: "right" if len(prompt) % 2 else "wrong"
        judged = replace(FULL.real_use or RealUse(), judge=Judge(url=server.url, model="golden"))
        edited = evaluation.evaluate(lm, facts, replace(FULL, real_use=judged))
        only = evaluation.evaluate(lm, facts, replace(FULL, only=("prompt", "neighbourhood"), generate=False))
    with editor("grace").edit(lm, FACTS[:3]).applied(lm):
        routed = evaluation.evaluate(lm, facts, FULL)
    reached = {*unedited.metrics, *edited.metrics, *routed.metrics}
    return {
        "out of reach": sorted({*evaluation.METRICS} - reached),
        "routed": routed.metrics,
        "declared": {
            key: {name: getattr(one, name) for name in ("title", "unit", "better", "edit_should", "needs", "is_share")}
            for key, one in evaluation.METRICS.items()
        },
        "run figures": {key: (one.title, one.unit, one.better) for key, one in RUN_FIGURES.items()},
        "unedited": unedited.metrics,
        "edited": edited.metrics,
        "only": only.metrics,
        "cases": [case.to_dict() for case in edited.cases],
    }


def protocols(folder: Path) -> Any:
    """The three protocols with everything on, of an editor that stacks and one that extends."""
    found: dict[str, Any] = {}
    for name, measured in (("rome", FULL), ("memit", SCORES)):
        for mode, go in (("single", evaluation.run_single), ("batch", evaluation.run_batch)):
            run = evaluation.EditRun(model(), LIST, editor(name), measured, RunFolder(folder / name / mode))
            go(run)
            found[f"{name} {mode}"] = run.summary(mode)
        fine_tuning = evaluation.FineTuningSettings(steps=2, lr=1e-3, text=Text(tokens=128, length=16))
        made = sequences.sequence(
            *(model(), LIST, editor(name), folder / name / "sequential"),
            measured=measured,
            checkpoints=(1, 2),
            fine_tuning=fine_tuning,
        )
        found[f"{name} sequential"] = made.summary() | {"curve": sequences.timeless(made)}
    limit = evaluation.CollapseStopSettings(reliability=1.0)
    made = sequences.sequence(
        *(model(), LIST, editor("rome"), folder / "stopped"), measured=SCORES, checkpoints=(1, 2), collapse_stop=limit
    )
    together = sequences.sequence(*(model(), LIST, editor("finetune"), folder / "together"), regime="together")
    return found | {"stopped": made.stopped, "together": together.retention.metrics}


def steering(folder: Path) -> Any:
    lm = model()
    edits = {strength: steer(lm, {(1, 3): 1.0, (2, 5): -1.0}, strength) for strength in (1.0, 4.0)}
    report = evaluation.steering_report(lm, edits, PROMPTS[:2], evaluation.has_word_of(["Rome", "tower"]), FULL)
    return {
        "summary": report.summary(),
        "texts": [row.texts for row in report.rows],
        "edit": effect(lm, edits[4.0], folder),
    }


def verification(folder: Path) -> Any:
    """What a build verifies of a list, its report, and the next list's."""
    lm = model()
    edit = editor("memit").edit(lm, FACTS)
    verified = verify(lm, edit, FACTS, FULL, RunFolder(folder))
    first = report_of(FACTS, verified, edit.origin.report, Plan.between([], FACTS), None)
    less = report_of(FACTS[1:], verified[1:], edit.origin.report[1:], Plan.between(FACTS, FACTS[1:]), first)
    return {"first": first, "less": less}


def tables(folder: Path) -> Any:
    """Rows, marks and tests of a leaderboard over made-up runs."""
    make, n = made_runs.runs_in(folder), 40
    for name, right in (("rome", 36), ("memit", 34), ("finetune", 12), ("none", 0)):
        for seed in (0, 1):
            make(name, [k < right for k in range(n)], [k % 4 > seed for k in range(n)], seed=seed, drift=right / 100)
    make("rome", [True] * n, mode="sequential", curve=True)
    # Of rows that are equal the first counts as the best, and rows come in the order of their runs' times.
    with patch.object(StoredRun, "when", datetime(2026, 1, 1, tzinfo=timezone.utc)):
        found = leaderboard(Store(folder / "outputs").runs())
    boards = {}
    for board in found.boards:
        rows = {
            row.label: {
                "cells": {key: astuple(cell) for key, cell in row.cells.items()},
                "behind": row.behind,
                "compared": row.compared,
            }
            for row in board.rows
        }
        tests = [(one.metric, one.left, one.right, one.comparison.p, one.p_holm) for one in board.tests]
        columns = [column.key for column in board.columns]
        boards[board.title] = {"rows": rows, "tests": tests, "ranked by": board.ranked_by, "columns": columns}
    return {"boards": boards, "left out": [one.why for one in found.left_out]}


def verbs(lm: LanguageModel, folder: Path, way: Any, said: Sequence[Fact]) -> Any:
    """A list that is inserted, compiled, updated, deleted from and compiled again."""
    with KnowledgeBase.open(folder / "golden.kb") as kb:
        reports = kb.insert(said)
        found: dict[str, Any] = {"reports": reports, "solved": kb.solve(lm, way.solver)}
        found["entries"] = [(one.key, one.value) for one in kb.entries(lm, kb.active)]
        found["compiled"] = effect(lm, kb.compile(lm, way.compiler), folder / "first")
        found["updated"] = kb.update(replace(said[1], target_new="German"), lm, way.solver)
        found["deleted"] = kb.delete(said[0].id).id
        found["compiled again"] = effect(lm, kb.compile(lm, way.compiler), folder / "second")
        found["facts"] = [(fact.id, fact.target_new) for fact in kb.active]
        found["found"] = [fact.id for fact in (*kb.find("big  ben"), *kb.find(text="dutch"))]
        found["exported"] = kb.export(folder / "facts.jsonl")
        found["left"], found["unused"] = [fact.id for fact in kb.unsolved(lm)], kb.compact()
    return found


def knowledge(folder: Path) -> Any:
    """Each way to keep a list, and memories as cross-attention with the k best entries."""
    lm = model()
    found: dict[str, Any] = {"ways": ways()}
    contradiction = replace(FACTS[0], id="later", target_new="London")
    for name in ways():
        way = how_named(name, editor("emmet")) if name == "attached" else how_of(editor(name))
        found[name] = verbs(lm, folder / name, way, [*FACTS, contradiction])
    way = how_named("attached", editor("emmet"))
    with KnowledgeBase.open(folder / "settings.kb") as kb:
        kb.insert(FACTS, lm, way.solver)
        for settings in ({"width": 8}, {"activation": "relu"}, {"index": "product_keys"}):
            edit = kb.compile(lm, Attached(**settings))
            found[f"attached, {settings}"] = effect(lm, edit, folder / f"{settings}")
    hidden = torch.randn(6, 32, generator=torch.Generator().manual_seed(1)).to(lm.device)
    for family in ("llama", "gpt2"):
        for layer, attention in unfold(model(family), (1, 3)).items():
            for by in ("score", "contribution"):
                found[f"{family} {layer} by {by}"] = measure_retrieval(attention.fold(), hidden, [1, 4, 16], by)
    return found


def exports(folder: Path) -> Any:
    """An edit as an adapter and in a whole model, each read again by the libraries of others."""
    found: dict[str, Any] = {}
    for family in ("llama", "gpt2"):
        lm = model(family)
        lm.save_pretrained(folder / family / "base")
        edit = editor("memit").edit(lm, FACTS[:2])
        edit.to_peft(folder / family / "adapter")
        with edit.applied(lm):
            lm.save_pretrained(folder / family / "edited")
            found[f"{family} here"] = answers(lm)
        base = AutoModelForCausalLM.from_pretrained(folder / family / "base")
        adapted = PeftModel.from_pretrained(base, str(folder / family / "adapter")).merge_and_unload()
        loaded = AutoModelForCausalLM.from_pretrained(folder / family / "edited")
        for name, one in (("adapter", adapted), ("model", loaded)):
            found[f"{family} {name}"] = answers(LanguageModel(one.eval(), lm.tokenizer, name))
        found[f"{family} file"] = load_file(folder / family / "adapter" / "adapter_model.safetensors")
    return found


MAKERS: dict[str, Callable[[Path], Any]] = {
    "metrics": metrics,
    "protocols": protocols,
    "steering": steering,
    "verification": verification,
    "leaderboard": tables,
    "knowledge": knowledge,
    "exports": exports,
}
