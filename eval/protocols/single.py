"""The single protocol: each fact is edited alone, from the unedited model."""

from __future__ import annotations

from contextlib import nullcontext

from corrigenda.progress import stage
from eval.evaluation import judged
from eval.held_out import in_turn
from eval.measure import measure, on_windows
from eval.protocols.runs import EditRun, report


def run_single(run: EditRun) -> None:
    """Edits each fact from the clean model, and scores it."""
    lm, baseline = run.lm, run.baseline(list(run.facts), run.settings)
    for number in baseline.chunks:
        chunk = baseline.facts(number)
        if all(map(run.is_done, chunk)):
            continue
        told = f"Measuring the unedited model, part {number + 1} of {len(baseline.chunks)}"
        with stage(told, at_once=False, bar=False):
            measured = baseline.chunk(number)
        for fact, before in zip(chunk, measured, strict=True):
            if run.is_done(fact):
                continue
            before = on_windows(before, in_turn(run.numbers[fact.id], run.settings))
            made = run.attempt([fact])
            with made.edit.applied(lm) if made.edit is not None else nullcontext():
                [after] = measure(lm, [fact], run.settings, [before])
            case = judged(fact, before, after, report(made.edit), made.seconds, made.error)
            run.finished(case, made.edit)
