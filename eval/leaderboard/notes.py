"""The words of a table: the labels of its rows, and what a reader has to know."""

import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from corrigenda.runs.ids import targets
from corrigenda.system.progress import counted
from eval.leaderboard.boards import Row, Test
from eval.leaderboard.columns import columns
from eval.leaderboard.entries import LeaderboardEntry, TableKey, seed_of
from eval.leaderboard.marks import lacks
from eval.leaderboard.ranking import Ranking
from eval.metrics import METRICS

NATIVE = "native_consistency"


def labels_of(entries: Sequence[LeaderboardEntry]) -> list[str]:
    """The editors' names; variants of one editor with the settings in which they differ."""
    labels = []
    for entry in entries:
        variants = [other for other in entries if other.editor == entry.editor]
        names = sorted({name for other in variants for name in other.settings})
        differing = [name for name in names if len({_told(v.settings, name) for v in variants}) > 1]
        parts = [f"{name.removeprefix('editor.')}={_plain(entry.settings, name)}" for name in differing]
        if any(other.submitted != entry.submitted for other in variants) and entry.submitted:
            parts.append("submitted")
        labels.append(f"{entry.editor} ({', '.join(parts)})" if parts else entry.editor)
    # A row is known by its label: no two may be alike (a text that reads like a number).
    alike = {label for label in labels if labels.count(label) > 1}
    return [
        f"{label} [{entry.runs[0].id[:8]}]" if label in alike else label
        for label, entry in zip(labels, entries, strict=True)
    ]


def _told(settings: Mapping[str, Any], name: str) -> str | None:
    return json.dumps(settings[name]) if name in settings else None


def _plain(settings: Mapping[str, Any], name: str) -> str:
    if name not in settings:
        return "unset"  # an option that is younger than the run
    value = settings[name]
    return value if isinstance(value, str) else json.dumps(value)


def notes_of(
    key: TableKey,
    rows: Sequence[Row],
    common: int,
    min_facts: int,
    ranked: bool,
    by: Ranking,
    tests: Sequence[Test],
    twins: Sequence[TableKey],
) -> list[str]:
    """What a reader of the table has to know.

    `common` is the number of facts that the compared rows share, `by` the column that orders them, and why, `tests` the
    paired tests that were made, `twins` the tables of the same model, data set and mode. With fewer common facts than
    `min_facts` no ranking is given.
    """
    notes: list[str] = []
    if ranked:
        made = f", with {counted(len(tests), 'paired test')}" if tests else ""
        notes += filter(None, [f"Compared on the {common} facts that the rows have in common{made}.", by.why])
    else:
        notes.append(f"No ranking: the rows have fewer than {min_facts} facts in common. Each shows its own facts.")
    for row in rows:
        if row.entry is None:
            notes.append(f"The control {row.label} ({row.control}) has no run in the store.")
        elif ranked and not row.compared:
            notes.append(f"{row.label}: {row.n_own} facts are too few to be compared; the figures are of these.")
        elif row.compared and row.n_own > row.n_facts:
            notes.append(f"{row.label} was run on {row.n_own} facts; {row.n_facts} of them are shown.")
        part = set(map(seed_of, row.entry.runs)).difference(row.entry.seeds) if row.entry is not None else ()
        for seed in sorted(part):
            notes.append(f"{row.label}: with seed {seed} it was not run on all of these facts, which is not counted.")
        if row.n_failed:
            notes.append(f"{row.label}: {row.n_failed} edits failed and count as failed.")
        cases = list(row.entry.cases.values()) if row.entry is not None else []
        lacking = [column for column in columns().values() if any(lacks(case, column.key) for case in cases)]
        if titles := [column.title for column in lacking if column.key in row.cells]:
            notes.append(
                f"{row.label}: after some edits there are no numbers (none is finite, or a prompt is too long); the "
                f"figures for {', '.join(titles)} are of the others, and are not compared."
            )
    if key.mode == "sequential":
        notes.append("Every figure is of the model after the last edit; seconds are of each edit.")
    if key.mode != "single":
        notes.append(
            "One edit or sequence a seed: the intervals are over the facts under it (of perplexity drift over the "
            "windows of the held-out texts), not over edits made anew."
        )
    for name in ("measured", "facts"):
        if len({getattr(twin, name) for twin in twins}) > 1:
            value = getattr(key, name)
            notes.append(
                f"Measured with {value}." if name == "measured" else f"The facts are those of set {value[:12]}."
            )
    return notes + precision_notes(rows) + code_notes(rows)


def heads_of(rows: Sequence[Row]) -> tuple[str, ...]:
    """What the unedited model says itself, beside which figures on paraphrases are read; nothing where none is known.

    From the first row that knows it, on the facts that the rows have in common where they are compared: all rows are of
    one model.
    """
    title = METRICS.named(NATIVE).title
    for row in sorted(rows, key=lambda row: not row.compared):
        cases = {fact: case for (fact, _), case in row.entry.cases.items()} if row.entry is not None else {}
        unedited = [case.before.values for case in cases.values() if case.before is not None]
        if known := [values[NATIVE] for values in unedited if NATIVE in values]:
            share = METRICS.named(NATIVE).written.text(fmean(known))
            return (f"{title}, {share} % (n = {len(known)} of {len(unedited)} facts).".capitalize(),)
    return ()


def precision_notes(rows: Sequence[Row]) -> list[str]:
    """Where the model is in 16 bits, that rounding counts as a change."""
    runs = [run for row in rows if row.entry for run in row.entry.runs]
    # Runs of earlier versions note none, and are configured.
    noted = {str(run.identity.get("dtype") or dict(run.config.get("model") or {}).get("dtype")) for run in runs}
    found = noted & {"bfloat16", "float16"}
    # A routed edit decides on whole prompts: what prompts begin with alike is then not run once for all of them.
    return [
        f"The model is in {dtype}, in which wordings change where prompts are only run in other groups. Those of an "
        "edit beside the weights are, so that its KL and its same ten words count rounding, too."
        for dtype in sorted(found)
    ]


def code_notes(rows: Sequence[Row]) -> list[str]:
    """Which rows have runs of several versions of the code.

    A run's code version is of the files that it uses, so only runs that use the same can be told apart by it.
    """
    found: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for row in rows:
        for run in row.entry.runs if row.entry else ():
            code = str(run.identity.get("code", "unknown"))
            found.setdefault(targets(run.config), {}).setdefault(code, []).append(row.label)
    notes = []
    for codes in found.values():
        if len(codes) > 1:
            labels = ", ".join(dict.fromkeys(label for these in codes.values() for label in these))
            notes.append(f"The runs of {labels} are of {len(codes)} versions of the code ({', '.join(sorted(codes))}).")
    return notes
