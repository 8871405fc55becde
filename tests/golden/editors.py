"""Golden values of the editors: one edit of two facts on each kind of model, and a sequence of two batches."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import sequences
from golden.made import FACTS, REDUCED, SCORES, answers, editor, effect, model

from corrigenda import EditRefusedError, UnsupportedModelError
from corrigenda.data import FactSet
from editing import EDITORS
from editing.shared.training_facts import TrainingFacts

ROOT = Path(__file__).parents[2]

GIVEN = Path(__file__).parents[1] / "data_files"
SHOWN = str(GIVEN / "demonstrations.jsonl")
FAMILIES = ("llama", "gpt2", "mixtral")  # gated; with biases and transposed matrices; a mixture of experts


def made(name: str, folder: Path) -> Any:
    """The editor; `saved` gives what ROME made, `ike`, `lre` and `feature` have files."""
    if name == "ike":
        return replace(editor(name), demonstrations=TrainingFacts(SHOWN), copies=1, updates=1, retained=1)
    if name in ("mend", "malmen", "serac"):
        return editor(name, untrained=True)
    if name == "lre":
        return editor(name, samples=str(GIVEN / "relations"), jacobians=2)
    if name == "feature":
        return editor(name, dictionary=str(GIVEN / "dictionary" / "layers.1.mlp"))
    if name != "saved":
        return editor(name)
    for number, facts in enumerate((FACTS[:2], FACTS[2:])):
        editor("rome").edit(model(), facts).save(folder / "run" / "edits" / str(number))
    return editor(name, run=str(folder / "run"))


def values(name: str, folder: Path) -> dict[str, Any]:
    """Everything that is kept of an editor."""
    found: dict[str, Any] = {"reduced": REDUCED}
    chosen = made(name, folder)
    whole = name in EDITORS.declared and name != "saved"  # of presets, which are other settings, the first family
    for family in FAMILIES if whole else FAMILIES[:1]:
        lm = model(family)
        try:
            found[family] = effect(lm, chosen.edit(lm, FACTS[:2]), folder / family)
        except (EditRefusedError, UnsupportedModelError) as error:
            found[family] = {"refused": str(error).replace(f"{ROOT}/", "")}
    lm = model()
    # The tiny model's held-out windows all begin alike (<unk>), which cannot be read behind a context of 32 tokens.
    measured = replace(SCORES, perplexity_windows=0) if name in ("in_context", "ike") else SCORES
    run = sequences.sequence(
        *(lm, FactSet("golden", FACTS), chosen, folder / "sequence"), measured=measured, batch=2, checkpoints=(2,)
    )
    for edit in run.edits:
        edit.apply(lm)
    found["two batches"] = {
        "regime": run.regime,
        "edits": [edit.kind for edit in run.edits],
        "answers": answers(lm),
        "curve": [
            {"t": point["t"], "norm": point.get("norm"), **{key: one["after"] for key, one in point["metrics"].items()}}
            for point in run.curve
        ],
        "errors": [case.error for case in run.run.evaluation.failures],
    }
    return found


MAKERS: dict[str, Callable[[Path], Any]] = {f"editors/{name}": partial(values, name) for name in EDITORS}
