"""Token accuracy: the share of the target's tokens that are the most likely ones under teacher forcing (zsRE, MEND)."""

from eval.metrics.groups import note_groups
from eval.metrics.metric import CurveColumn, Groups, LeaderboardColumn, Metric, Needs, mean_over

METRICS = (
    Metric(
        "token_accuracy",
        "token accuracy, teacher-forced",
        "%",
        "high",
        (Needs("probabilities", ("prompt",)),),
        mean_over("token_accuracy", "prompt"),
        short="token acc.",
        edit_should="change",
        column=LeaderboardColumn(70, ranks=3, axis="across", axis_place=3),
        curve=(CurveColumn("right_after", "right after", 10), CurveColumn(heading="reliability", place=20)),
    ),
    Metric(
        "paraphrase_token_accuracy",
        "token accuracy on paraphrases, teacher-forced",
        "%",
        "high",
        (Needs("probabilities", ("paraphrases",)),),
        mean_over("token_accuracy", "paraphrases"),
        short="par. token",
        line="  on paraphrases",
        edit_should="change",
        curve=(CurveColumn("right_after"), CurveColumn(heading="generalization", place=40)),
    ),
    Metric(
        "portability_token_accuracy",
        "portability: token accuracy on consequences",
        "%",
        "high",
        (Needs("probabilities", ("portability",)),),
        mean_over("token_accuracy", "portability"),
        short="port. token",
        line="  on consequences (portability)",
        edit_should="change",
        judge=note_groups,
        column=LeaderboardColumn(110),
        groups=Groups("portability", "portability_", "_token_accuracy", "token accuracy"),
    ),
)
"""On the edited statement, its paraphrases, and its consequences (RippleEdits, KnowEdit)."""
