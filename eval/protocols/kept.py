"""Measures the edits of a checkpoint again, from the disk: for what was not measured when they were made."""

from corrigenda import Edit, LanguageModel
from corrigenda.data.requests import select_active
from corrigenda.edits.edit import all_applied
from corrigenda.runs.folder import RunFolder
from eval.evaluation import Case, Evaluation, judged
from eval.measure import measure
from eval.protocols.journal import lines_of
from eval.protocols.pre_edit import PreEditMeasurement
from eval.protocols.runs import CHUNK
from eval.settings import EvalSettings


def measure_kept(lm: LanguageModel, folder: RunFolder, t: int, settings: EvalSettings) -> Evaluation:
    """How the facts stand under the edits that were in force after T edits of a sequence; nothing is edited.

    The facts are those that were scored at that checkpoint and are in force; what failed then counts as failed. The run
    kept its edits (`SequentialSettings.keep_edits`). Raises FileNotFoundError: it has no such checkpoint, or one of its
    edits is gone; ValueError: it kept no edits there, the model is another one, or a file is damaged.
    """
    points = {line["t"]: line for line in lines_of(folder.path, "point")}
    if t not in points:
        done = ", ".join(map(str, sorted(points))) or "none"
        raise FileNotFoundError(f"{folder.path} has no checkpoint at T={t}; it has {done}")
    if "edits" not in points[t]:
        raise ValueError(
            f"{folder.path}: the edits of the checkpoint at T={t} were not kept; run the sequence with "
            "job.sequential.keep_edits=true"
        )
    begun = folder.identity.get("model_fingerprint", lm.fingerprint)
    if begun != lm.fingerprint:
        raise ValueError(f"{folder.path}: its model has the weights {begun[:12]}, and {lm.name} {lm.fingerprint[:12]}")
    cases = [Case.from_dict(record) for record in lines_of(folder.path, "scored", t)]
    cases = [cases[number] for number in select_active([case.fact for case in cases]).active]
    edits = [Edit.load(folder.path / edit) for edit in points[t]["edits"]]
    pre_edit = PreEditMeasurement(lm, [case.fact for case in cases], settings, CHUNK)
    errors = {case.fact.id: case.error for case in cases}
    found: list[Case] = []
    for number in pre_edit.chunks:
        facts, before = pre_edit.facts(number), pre_edit.chunk(number)
        with all_applied(edits, lm):
            after = measure(lm, facts, settings, before)
        for fact, old, new in zip(facts, before, after, strict=True):
            found.append(judged(fact, old, new, error=errors[fact.id]))
    return Evaluation(tuple(found))
