"""Preservation: what an edit left as it was on neighbourhood and locality prompts (zsRE "locality", corrected).

Compared are greedy continuations of a given length with end tokens barred, not answers up to their end: a model that
answers a bare question with nothing would preserve that whatever was done to it.
"""

import operator
from statistics import fmean

from eval.measurement import Measurement
from eval.metrics.groups import note_groups
from eval.metrics.metric import CurveColumn, Groups, LeaderboardColumn, Metric, Needs, mean_of


def _preserved(_before: Measurement | None, after: Measurement) -> float | None:
    """The share of prompts, each counted once, whose greedy continuation, end tokens barred, is the one before."""
    kept = {record.prompt: record.preserved for record in after.elsewhere() if record.preserved is not None}
    return mean_of(kept.values())


def _blank(before: Measurement | None, after: Measurement) -> float | None:
    """The share of the same prompts to which the unedited model, left to end where it will, answers with nothing."""
    if before is None:
        return None
    blank = {record.prompt: record.blank for record in after.elsewhere() if record.blank is not None}
    return mean_of(blank.values())


def _same_tokens(before: Measurement | None, after: Measurement) -> float | None:
    """The share of the expected answer's tokens in whose place the same token is the most likely one as before."""
    if before is None:
        return None
    pairs = zip(before.probes("locality"), after.probes("locality"), strict=False)
    return mean_of(
        fmean(map(operator.eq, old.most_likely, new.most_likely))
        for old, new in pairs
        if old.most_likely and new.most_likely
    )


METRICS = (
    Metric(
        "preservation",
        "same ten words",
        "%",
        "high",
        (Needs("kept_answers", ("neighbourhood", "locality")),),
        _preserved,
        short="same words",
        edit_should="keep",
        judge=note_groups,
        column=LeaderboardColumn(20, axis="up", axis_place=2),
        curve=(CurveColumn(heading="locality", place=60), CurveColumn("fixed", "fixed locality", 90)),
        groups=Groups("locality", "preservation_", "", "preservation"),
    ),
    Metric(
        "blank_answers",
        "blank answers of the unedited model",
        "%",
        None,
        (Needs("kept_answers", ("neighbourhood", "locality")), Needs("distributions", ("neighbourhood", "locality"))),
        _blank,
        short="blank",
        line="  the unedited model's answer was blank",
        curve=(CurveColumn(heading="blank", place=65), CurveColumn("fixed", "blank", 95)),
    ),
    Metric(
        "locality_token_agreement",
        "same tokens, teacher-forced (locality)",
        "%",
        "high",
        (Needs("probabilities", ("locality",)),),
        _same_tokens,
        short="same tokens",
        line="  same tokens, teacher-forced (locality)",
        edit_should="keep",
        curve=(CurveColumn(heading="forced", place=70), CurveColumn("fixed", "forced", 100)),
    ),
)
