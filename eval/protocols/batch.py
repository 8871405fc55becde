"""The batch protocol: all facts are edited in one edit, but those that a later one supersedes or repeats."""

from contextlib import nullcontext

from corrigenda import Edit
from corrigenda.data.requests import left_out, reports_together, select_active
from corrigenda.runs.records import JOURNAL
from corrigenda.system.progress import track
from eval.evaluation import judged
from eval.measure import measure
from eval.measurement import HeldOut
from eval.protocols.runs import Attempt, EditRun, reports_of
from eval.scoring.held_out import read_held_out


def run_batch(run: EditRun) -> None:
    """Edits all facts that are in force in one edit, and scores all of them under it."""
    facts = list(run.facts)
    now = select_active(facts)
    lm, pre_edit = run.lm, run.pre_edit(list(run.facts), run.settings)
    if run.n_done == len(run.facts):
        return
    path = run.folder.edit_path(0, "all")
    said = next(run.folder.cases(JOURNAL), None)
    if said is not None:  # what came of the edit is not asked twice
        made = Attempt(None if said["error"] else Edit.load(path), said["seconds"], said["error"])
    else:
        made = run.attempt([facts[number] for number in now.active])
        if made.edit is not None:
            made.edit.save(path)
        if not made.crashed:
            run.folder.append({"kind": "edit", "seconds": made.seconds, "error": made.error}, JOURNAL)
    reports = reports_of(made.edit)
    together = {fact.id: report for fact, report in zip(facts, reports_together(facts, now), strict=True)}
    held_out: HeldOut | None = None
    for number in track(pre_edit.chunks, "Measuring the model before and after the edit", bar=False):
        chunk = pre_edit.facts(number)
        if all(map(run.is_done, chunk)):
            continue
        before = pre_edit.chunk(number)
        with made.edit.applied(lm) if made.edit is not None else nullcontext():
            if held_out is None:  # one edited model for all chunks
                held_out = read_held_out(lm, run.settings)
            after = measure(lm, chunk, run.settings, before, held_out)
        for fact, old, new in zip(chunk, before, after, strict=True):
            mine = reports.get(fact.id)
            said = mine if not together[fact.id] else (mine or {}) | together[fact.id]
            if left_out(said):  # nothing was asked of the editor, so it did not fail
                run.finished(judged(fact, old, new, said))
                continue
            why = made.error or str((mine or {}).get("refused", ""))
            # The edit of all facts is saved already, as one.
            run.finished(judged(fact, old, new, said, made.seconds / len(now.active), why))
