"""Submissions: runs from elsewhere, as the records of their cases (docs/submissions.md); checked, then stored as a run.

No average is taken over from a submission. Its values are worked out from its records, and compared with what the store
knows of the same facts and the same model.
"""

import json
import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from corrigenda import Fact
from corrigenda.data.requests import reports_together, select_active
from corrigenda.errors import CorrigendaError
from corrigenda.runs.folder import RunFolder
from corrigenda.runs.store import Store, StoredRun
from corrigenda.system.files import digest_of
from corrigenda.system.plain_data import MOST_YAML, read_json, yaml_text
from eval.evaluation import NOT_FINITE, Case, Evaluation
from eval.leaderboard.entries import definitions_of, table_key
from eval.leaderboard.recompute import recomputed
from eval.leaderboard.submission_checks import case_problems, claim_problems, value_problems
from eval.leaderboard.submission_form import FormProblem, form_problems, undefined
from eval.records import DEFINITIONS, LOG_PROBS

SHOWN = 20
"""So many problems are listed at once."""


class SubmissionError(CorrigendaError, ValueError):
    """A submission that cannot be taken in; `problems` are all that is wrong with it."""

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        more = [f"... and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        super().__init__("\n  ".join([f"{source} cannot be taken in:", *problems[:SHOWN], *more]))
        self.problems = list(problems)


def add_submission(path: Path, store: Store) -> Path:
    """Checks a submission and puts it into the store; gives the folder of the run that it became.

    Raises:
        FileNotFoundError: there is no such file.
        SubmissionError: something is wrong with it; all of it is said.
    """
    if not path.is_file():
        raise FileNotFoundError(f"add={path}: there is no such file")
    try:
        submission = read_json(path)
    except ValueError as error:
        raise SubmissionError(str(path), [f"not JSON of plain values: {error}"]) from None
    number = digest_of(path)[:16]
    cases, peer = validate(submission, store.runs(), str(path))
    folder = RunFolder(store.root / "submissions" / number)
    if (folder.path / "summary.json").is_file():
        return folder.path
    _write(folder, number, submission, cases, peer)
    return folder.path


def validate(
    submission: Any, runs: Sequence[StoredRun], source: str = "the submission"
) -> tuple[list[dict[str, Any]], StoredRun]:
    """The records of a submission's cases with values worked out anew, and a run of the same model, data and mode.

    Raises SubmissionError: something is wrong with it; all of it is said.
    """
    form = form_problems(submission)
    peer = _peer(submission, runs, form, source)
    # In sequential mode: as they are after the last edit.
    known = {r["id"]: r for r in peer.cases("retention" if submission["mode"] == "sequential" else "cases")}
    cases: list[Case] = []
    seen: set[str] = set()
    problems: list[str] = []
    for place, record in enumerate(submission["cases"]):
        of_form = [problem for problem in form if problem.case == place]
        if not isinstance(record, Mapping) or not isinstance(record.get("id"), str) or not record["id"]:
            problems.append(FormProblem(("cases", place), "").text())
            continue
        where = f"case {record['id']!r}"
        if record["id"] in seen:
            problems.append(f"{where}: is there twice")
        elif record["id"] not in known:
            problems.append(f"{where}: unknown fact; it is not among the {len(known)} facts of {submission['data']!r}")
        else:
            found = [problem.text(where) for problem in of_form]
            wrong = [problem.place[2:] for problem in of_form]
            found += [f"{where}: {problem}" for problem in case_problems(record, known[record["id"]], wrong)]
            problems += found
            if not found:
                case = _case(Fact.from_dict(known[record["id"]]["fact"]), record)
                problems += [f"{where}: {problem}" for problem in value_problems(record, case)]
                cases.append(case)
        seen.add(record["id"])
    missing = [name for name in known if name not in seen]
    if missing:
        listed = ", ".join(map(repr, missing[:5])) + (", ..." if len(missing) > 5 else "")
        problems.append(f"{len(missing)} of the {len(known)} cases are missing: {listed}; a case cannot be left out")
    # In the data set's order, on which it depends which of two contradicting requests holds.
    order = {name: place for place, name in enumerate(known)}
    cases.sort(key=lambda case: order[case.fact.id])
    if submission["mode"] == "batch":
        facts = [case.fact for case in cases]
        said = reports_together(facts, select_active(facts))
        cases = [replace(case, edit=report or None) for case, report in zip(cases, said, strict=True)]
    if not problems:
        problems += claim_problems(submission, counted(cases, submission["mode"]))
    if problems:
        raise SubmissionError(source, problems)
    return [case.to_dict() for case in cases], peer


def counted(cases: Sequence[Case], mode: str) -> list[Case]:
    """The cases that averages are over: but for single edits, those whose request is in force."""
    chosen = range(len(cases)) if mode == "single" else select_active([case.fact for case in cases]).active
    return [cases[number] for number in chosen]


def _peer(submission: Any, runs: Sequence[StoredRun], form: list[FormProblem], source: str) -> StoredRun:
    """The latest run that a submission can be checked against.

    Raises:
        SubmissionError: what stands beside the cases is wrong, or there is no such run.
    """
    if not any(problem.case is None for problem in form):
        size = len(json.dumps(_config(submission, None)))
        if size > MOST_YAML // 4:
            form.append(FormProblem(("config",), f"and what is said beside it have {size:,} characters; shorten them"))
    problems = [problem.text() for problem in form if problem.case is None]
    if problems:
        raise SubmissionError(source, problems)
    peers = _peers(submission, runs)
    if not peers:
        raise SubmissionError(
            source,
            [
                f"the store has no finished run of model {submission['model']!r} on {submission['data']!r} in mode "
                f"{submission['mode']!r} by this version's definitions of the metrics to check it against; run the "
                "controls first (editor=none,in_context,random)"
            ],
        )
    return peers[-1]


def _case(fact: Fact, record: Mapping[str, Any]) -> Case:
    """The case of a record, with values worked out anew; one whose edit left no numbers says so in its error."""
    numbers = deepcopy(dict(record))
    no_numbers = None in (numbers["after"].get("held_out") or {}).get("log_probs", ())
    for records in numbers["after"]["prompts"].values():
        for one in records:
            no_numbers |= undefined(one)
            for name in LOG_PROBS:
                if name in one:
                    one[name] = [math.nan if value is None else value for value in one[name]]
            if one.get("kl", 0.0) is None:
                one["kl"] = math.nan
    case = recomputed(fact, numbers)
    if no_numbers and not case.error.startswith(NOT_FINITE):
        case = replace(case, error=f"{NOT_FINITE}: {case.error}")
    return case


def _config(submission: Mapping[str, Any], peer: StoredRun | None) -> dict[str, Any]:
    """The configuration of the run that a submission becomes, but for its number."""
    of_peer = {} if peer is None else {name: dict(peer.config.get(name) or {}) for name in ("model", "eval", "data")}
    return {
        "submission": {name: submission[name] for name in ("by", "url", "machine", "notes") if name in submission},
        "mode": submission.get("mode"),
        "seed": submission.get("seed", 0),
        "editor": dict(submission.get("config") or {}),
        **of_peer,
    }


def _peers(submission: Mapping[str, Any], runs: Sequence[StoredRun]) -> list[StoredRun]:
    """The store's own runs that stand in the table where the submission will, oldest first."""
    found = []
    for run in runs:
        own = run.state == "finished" and run.job == "edit" and "submission" not in run.config
        if own and definitions_of(run) == DEFINITIONS:  # values are worked out by these
            key = table_key(run)
            if (key.model, key.data, key.mode) == tuple(submission[name] for name in ("model", "data", "mode")):
                found.append(run)
    # The facts of the largest run are the ones that are known.
    return sorted(found, key=lambda run: run.done)


def _write(
    folder: RunFolder, number: str, submission: Mapping[str, Any], cases: Sequence[Mapping[str, Any]], peer: StoredRun
) -> None:
    """Puts a checked submission into a run's folder."""
    config = _config(submission, peer)
    config["submission"] = {"number": number, **config["submission"]}
    folder.begin(yaml_text(config))
    prints = {name: str(peer.summary.get(name, "")) for name in ("model_fingerprint", "data_fingerprint")}
    folder.identify(id=number, code="submitted", **prints)
    kept = {"cases": list(cases)}
    if submission["mode"] == "sequential":
        kept["retention"] = [{**record, "seconds": None} for record in cases]
    for name, records in kept.items():
        done = {record["id"] for record in folder.cases(name)}
        for record in records:
            if record["id"] not in done:
                folder.append(record, name)
    evaluation = Evaluation(tuple(counted([Case.from_dict(record) for record in cases], submission["mode"])))
    seconds = [record["seconds"] for record in cases if record["seconds"] is not None]
    folder.finish(
        {
            **{name: submission[name] for name in ("editor", "model", "data", "mode")},
            **prints,
            "definitions": DEFINITIONS,
            "n_facts": len(cases),
            "n_failed": len(evaluation.failures),
            "seconds_per_edit": sum(seconds) / len(seconds) if seconds else None,
            "peak_memory_mb": submission.get("peak_memory_mb"),
            "metrics": evaluation.metrics,
        }
    )
