"""From runs in the store to the rows of tables: which runs belong to one row, and which rows into one table."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corrigenda import Fact
from corrigenda.data.requests import left_out, select_active
from corrigenda.runs.ids import essential
from corrigenda.runs.store import StoredRun
from eval.evaluation import Case
from eval.leaderboard.case_view import case_view
from eval.measurement import Measurement

Unit = tuple[str, int]
"""A fact (see `fact_key`) and the seed of the run."""


@dataclass(frozen=True)
class TableKey:
    """What rows have to share to stand in one table.

    Attributes:
        model: the model's name.
        data: the data set's name.
        mode: single, batch or sequential.
        model_fingerprint: of the weights.
        facts: fingerprint of the set of facts where all of them go into one edit or sequence, and results depend on
            which they are; empty in single mode, where rows are compared on the facts they share.
        measured: the evaluation's settings, and the number of the definitions (`eval.records.DEFINITIONS`) by which
            the figures were made, as canonical JSON.
    """

    model: str
    data: str
    mode: str
    model_fingerprint: str
    facts: str
    measured: str


@dataclass(frozen=True)
class LeaderboardEntry:
    """One row's material: an editor with its settings, without the seed, and the runs that are shown, one a seed.

    The cases are without the prompts, which are read again where they are shown; it may be `submitted` from elsewhere.
    """

    editor: str
    settings: Mapping[str, Any]
    runs: tuple[StoredRun, ...]
    cases: Mapping[Unit, Case]
    submitted: bool

    @property
    def facts(self) -> set[str]:
        """The keys of the facts."""
        return {fact for fact, _ in self.cases}

    @property
    def seeds(self) -> list[int]:
        """The seeds, in order."""
        return sorted({seed for _, seed in self.cases})


@dataclass(frozen=True)
class LeftOut:
    """A run's folder that is in no table, and the reason."""

    path: Path
    why: str


def fact_key(fact: Fact) -> str:
    """Equal for facts that are equal in everything: id, targets and every prompt."""
    text = json.dumps(fact.to_dict(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def collect(runs: Iterable[StoredRun]) -> tuple[dict[TableKey, list[LeaderboardEntry]], list[LeftOut]]:
    """The rows of each table, in no particular order, and the runs that are in none.

    Runs that differ in nothing but the seed make one row. Of runs that do not differ at all (another version of the
    code, a run that was forced) the newest is taken.
    """
    left_out: list[LeftOut] = []
    rows: dict[tuple[TableKey, str, str, bool], dict[tuple[int, str], tuple[StoredRun, dict[str, Case]]]] = {}
    for run in sorted(runs, key=lambda run: run.when):
        if run.job != "edit":
            continue
        if run.state != "finished":
            left_out.append(LeftOut(run.path, f"{run.state}: {run.problem}" if run.problem else run.state))
            continue
        if why := _cut_short(run):
            left_out.append(LeftOut(run.path, why))
            continue
        try:
            cases = _cases(run)
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            # Its records are those that were written, and not of the form that they have to be of.
            left_out.append(LeftOut(run.path, f"damaged: {str(error) or type(error).__name__}"))
            continue
        key = (table_key(run), str(run.summary["editor"]), _canonical(_settings(run)), "submission" in run.config)
        place = (seed_of(run), str(run.summary.get("data_fingerprint", "")))
        if (older := rows.setdefault(key, {}).get(place)) is not None:
            left_out.append(LeftOut(older[0].path, f"superseded by {run.path.name}"))
        rows[key][place] = (run, cases)
    tables: dict[TableKey, list[LeaderboardEntry]] = {}
    for (table, editor, settings, submitted), places in rows.items():
        united: dict[Unit, Case] = {}
        for (seed, _), (_, cases) in places.items():
            united.update({(fact, seed): case for fact, case in cases.items()})
        shown = tuple(run for run, _ in places.values())
        tables.setdefault(table, []).append(LeaderboardEntry(editor, json.loads(settings), shown, united, submitted))
    return _merged(tables), left_out


def _cut_short(run: StoredRun) -> str:
    """Why a sequence cannot stand beside others: its collapse stop ended it before its last fact; else empty.

    Its facts were scored after fewer edits than those of the others.
    """
    stopped = run.summary.get("stopped")
    if not stopped or stopped["t"] >= stopped["n_facts_asked_for"]:
        return ""
    return f"ended by its collapse stop: {stopped['why']}, of {stopped['n_facts_asked_for']} asked for"


def table_key(run: StoredRun) -> TableKey:
    """The table that a finished run belongs to."""
    summary = run.summary
    mode = str(summary["mode"])
    measured = {key: value for key, value in dict(run.config.get("eval") or {}).items() if key not in _UNIMPORTANT}
    measured["definitions"] = definitions_of(run)
    # A fact with questions about other subjects is scored on more than one without them.
    measured["other_subjects"] = dict(run.config.get("data") or {}).get("other_subjects") or 0
    return TableKey(
        model=str(summary["model"]),
        data=str(summary["data"]),
        mode=mode,
        model_fingerprint=str(summary.get("model_fingerprint", "")),
        facts="" if mode == "single" else str(summary.get("data_fingerprint", "")),
        measured=_canonical(measured),
    )


def definitions_of(run: StoredRun) -> int:
    """The number of the definitions by which a finished run's figures were made; the first ones have none."""
    return int(run.summary.get("definitions", 1))


_UNIMPORTANT = {"_target_", "seed", "max_tokens", "harness_tasks", "harness_folder", "harness_limit"}
_UNIMPORTANT |= {"side_effects", "real_use"}  # they add figures, and leave the others as they are


def _merged(tables: dict[TableKey, list[LeaderboardEntry]]) -> dict[TableKey, list[LeaderboardEntry]]:
    """Tables of runs that differ in the model's name but not in its weights are one, under the first name."""
    merged: dict[TableKey, list[LeaderboardEntry]] = {}
    names: dict[str, str] = {}
    for key, entries in tables.items():
        name = names.setdefault(key.model_fingerprint, key.model) if key.model_fingerprint else key.model
        merged.setdefault(replace(key, model=name), []).extend(entries)
    return merged


def _cases(run: StoredRun) -> dict[str, Case]:
    """By fact; in sequential runs as they are after the last edit, with the seconds that each edit took."""
    seconds = {record["id"]: record["seconds"] for record in run.cases()}
    cases: dict[str, Case] = {}
    records = run.cases("retention" if run.summary["mode"] == "sequential" else "cases")
    if run.summary["mode"] == "sequential":
        # A request that a later one of the sequence contradicts or repeats is not in force any more.
        records = [records[number] for number in select_active([Fact.from_dict(r["fact"]) for r in records]).active]
    for record in records:
        if left_out(record["edit"]):  # of a batch: another fact of it stands in its place
            continue
        case = Case.from_dict(record)
        _require_form(case)
        case_view(record, seconds[record["id"]], None)  # the page will show it
        before = None if case.before is None else _without_prompts(case.before)
        after = _without_prompts(case.after)
        light = replace(case, before=before, after=after, edit=None, seconds=seconds[case.fact.id])
        cases[fact_key(case.fact)] = light
    return cases


def _require_form(case: Case) -> None:
    """Checks that a case's values are numbers that can be averaged, and its error a text.

    Raises:
        ValueError: one is not.
    """
    found = dict(case.after.values) | ({} if case.seconds is None else {"seconds": case.seconds})
    for name, value in (*found.items(), *(() if case.before is None else case.before.values.items())):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= LARGEST:
            raise ValueError(f"the record of {case.fact.id!r}: {name} is no number: {value!r:.40}")
    if not isinstance(case.error, str):
        raise ValueError(f"the record of {case.fact.id!r}: error is no text: {case.error!r:.40}")


LARGEST = 1e100
"""A value above that is none that was measured, and its square would be infinite."""


def _without_prompts(measurement: Measurement) -> Measurement:
    """What tables need of it: the values, and the windows of the held-out texts, over which intervals are."""
    return Measurement(values=measurement.values, held_out=measurement.held_out)


_TOLD_APART = {"mode", "eval", "job", "seed", "submission"}


def _settings(run: StoredRun) -> dict[str, Any]:
    """What tells variants of an editor apart, by dotted name."""
    config = essential(run.config)
    kept = {key: value for key, value in config.items() if key not in _TOLD_APART}
    # What else of a run's circumstances makes another row of it: how edits come together, and whose submission it is.
    job, submission = config.get("job"), config.get("submission")
    if config.get("mode") == "sequential" and isinstance(job, Mapping):
        sequential = dict(job.get("sequential") or {})
        kept["regime"], kept["batch"] = sequential.get("regime"), sequential.get("batch", 1)
    if isinstance(job, Mapping) and job.get("auto_layer") is not None:  # where the editor's layers are found by it
        kept["auto_layer"] = job["auto_layer"]
    if isinstance(submission, Mapping):
        kept["by"] = submission.get("by", submission.get("number"))
    return {name: value for name, value in flat(kept).items() if name.rpartition(".")[2] not in ("seed", "_target_")}


def seed_of(run: StoredRun) -> int:
    """A run's seed; 0 where it names none."""
    seed = run.config.get("seed", 0)
    return seed if isinstance(seed, int) else 0


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted name."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = value
    return found


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
