"""Submissions: runs from elsewhere, as the records of their cases (docs/submissions.md); checked, then stored as a run.

No average is taken over from a submission. Its values are worked out from its records, and compared with what the store
knows of the same facts and the same model.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from corrigenda import Fact
from corrigenda.runs.folder import RunFolder
from corrigenda.runs.store import Store, StoredRun
from eval.evaluation import Case, Evaluation
from eval.leaderboard.entries import table_key
from eval.leaderboard.recompute import PAIRED_KINDS, paired_probabilities, recomputed

SCHEMA = "corrigenda-submission/1"

FIELDS: dict[str, type[Any]] = {"editor": str, "model": str, "data": str, "mode": str, "cases": list}
"""What a submission must have besides the schema's name."""

MODES = ("single", "batch", "sequential")

SHOWN = 20
"""So many problems are listed at once."""

CLOSE = 1e-4
"""How far a figure may be from what the records give: what rounding to four digits does."""

SAME_MODEL = 0.02
"""How far P before the edit may be from that of the store's runs of the same model: other kernels, other precision."""


class SubmissionError(ValueError):
    """A submission that cannot be taken in.

    Attributes:
        problems: all that is wrong with it.
    """

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
    content = path.read_bytes()
    number = hashlib.sha256(content).hexdigest()[:16]
    try:
        submission = json.loads(content, parse_constant=_refuse)
    except ValueError as error:
        raise SubmissionError(str(path), [f"not JSON: {error}"]) from None
    cases, peer = validate(submission, store.runs(), str(path))
    folder = RunFolder(store.root / "submissions" / number)
    if (folder.path / "summary.json").is_file():
        return folder.path
    _write(folder, number, submission, cases, peer)
    return folder.path


def validate(
    submission: Any, runs: Sequence[StoredRun], source: str = "the submission"
) -> tuple[list[dict[str, Any]], StoredRun]:
    """Checks a submission against the runs of the store.

    Returns:
        the records of its cases with values worked out anew, and a run of the same model, data and mode.

    Raises:
        SubmissionError: something is wrong with it; all of it is said.
    """
    problems = list(_form(submission))
    if problems:
        raise SubmissionError(source, problems)
    peers = _peers(submission, runs)
    if not peers:
        raise SubmissionError(
            source,
            [
                f"the store has no finished run of model {submission['model']!r} on {submission['data']!r} in mode "
                f"{submission['mode']!r} to check it against; run the controls first (editor=none,in_context,random)"
            ],
        )
    peer = peers[-1]
    # In sequential mode: as they are after the last edit.
    known = {r["id"]: r for r in peer.cases("retention" if submission["mode"] == "sequential" else "cases")}
    cases: list[Case] = []
    seen: set[str] = set()
    for place, record in enumerate(submission["cases"]):
        if not isinstance(record, Mapping) or not isinstance(record.get("id"), str):
            problems.append(f"cases[{place}]: must be an object with an 'id'")
            continue
        where = f"case {record['id']!r}"
        if record["id"] in seen:
            problems.append(f"{where}: is there twice")
        elif record["id"] not in known:
            problems.append(f"{where}: unknown fact; it is not among the {len(known)} facts of {submission['data']!r}")
        else:
            found = [f"{where}: {problem}" for problem in _case_problems(record, known[record["id"]])]
            problems += found
            if not found:
                fact = Fact.from_dict(known[record["id"]]["fact"])
                case = recomputed(fact, record)
                problems += [f"{where}: {problem}" for problem in _value_problems(record, case)]
                cases.append(case)
        seen.add(record["id"])
    missing = [name for name in known if name not in seen]
    if missing:
        listed = ", ".join(map(repr, missing[:5])) + (", ..." if len(missing) > 5 else "")
        problems.append(f"{len(missing)} of the {len(known)} cases are missing: {listed}; a case cannot be left out")
    if not problems:
        problems += _claims(submission, cases)
    if problems:
        raise SubmissionError(source, problems)
    # In the data set's order, on which it depends which of two contradicting requests of a sequence holds.
    order = {name: place for place, name in enumerate(known)}
    return [case.to_dict() for case in sorted(cases, key=lambda case: order[case.fact.id])], peer


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def _form(submission: Any) -> Iterator[str]:
    """What is wrong with the outermost fields."""
    if not isinstance(submission, Mapping):
        yield f"must be an object, got {type(submission).__name__}"
        return
    if submission.get("schema") != SCHEMA:
        yield f"'schema' must be {SCHEMA!r}, got {submission.get('schema')!r}"
    for name, kind in FIELDS.items():
        value = submission.get(name)
        if not (isinstance(value, kind) and value):
            yield f"{name!r} must be a {kind.__name__} that is not empty, got {_shown(value)}"
    if submission.get("mode") not in MODES:
        yield f"'mode' must be one of {', '.join(MODES)}, got {_shown(submission.get('mode'))}"
    if not isinstance(submission.get("seed", 0), int) or isinstance(submission.get("seed"), bool):
        yield f"'seed' must be a whole number, got {_shown(submission['seed'])}"
    memory = submission.get("peak_memory_mb")
    if memory is not None and not (_is_number(memory) and memory > 0):
        yield f"'peak_memory_mb' must be a positive number, got {_shown(memory)}"
    for name in ("by", "url"):
        if not isinstance(submission.get(name, ""), str):
            yield f"{name!r} must be a text, got {_shown(submission[name])}"
    for name in ("config", "claimed"):
        if not isinstance(submission.get(name, {}), Mapping):
            yield f"{name!r} must be an object, got {_shown(submission[name])}"
    try:
        OmegaConf.to_yaml(OmegaConf.create(_config(submission, None)), resolve=True)
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        yield f"'config' cannot be written as a configuration: {error}".splitlines()[0]


def _config(submission: Mapping[str, Any], peer: StoredRun | None) -> dict[str, Any]:
    """The configuration of the run that a submission becomes, but for its number."""
    of_peer = {} if peer is None else {name: dict(peer.config.get(name) or {}) for name in ("model", "eval")}
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
        if run.state == "finished" and run.job == "edit" and "submission" not in run.config:
            key = table_key(run)
            if (key.model, key.data, key.mode) == tuple(submission[name] for name in ("model", "data", "mode")):
                found.append(run)
    # The facts of the largest run are the ones that are known.
    return sorted(found, key=lambda run: run.done)


def _case_problems(record: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with one case's records, as they are given."""
    if not isinstance(record.get("fact", {}), Mapping):
        yield f"'fact' must be an object, got {_shown(record['fact'])}"
    elif "fact" in record and record["fact"] != known["fact"]:
        different = sorted(
            name for name in {*record["fact"], *known["fact"]} if record["fact"].get(name) != known["fact"].get(name)
        )
        yield f"changed fact: {', '.join(different)} differ from the data set's"
    seconds = record.get("seconds")
    if seconds is not None and not (_is_number(seconds) and seconds >= 0):
        yield f"'seconds' must be a number that is not negative, got {_shown(seconds)}"
    for state in ("before", "after"):
        given = record.get(state)
        if not isinstance(given, Mapping) or not isinstance(given.get("prompts"), Mapping):
            yield f"'{state}' must be an object with 'prompts'"
            continue
        if not isinstance(given.get("values") or {}, Mapping):
            yield f"{state}.values must be an object, got {_shown(given['values'])}"
            continue
        level = dict(given.get("values") or {}).get("log_perplexity")
        expected = known["before"]["values"].get("log_perplexity")
        if level is not None and not (_is_number(level) and level >= 0):
            yield f"{state}.values.log_perplexity must be a number that is not negative, got {_shown(level)}"
        elif level is None and expected is not None and not record.get("error"):
            yield f"{state}.values.log_perplexity: missing"
        elif state == "before" and level is not None and expected is not None and abs(level - expected) > SAME_MODEL:
            yield f"before: log perplexity is {level:.3f}, but the store's runs of this model have {expected:.3f}"
        for kind in given["prompts"]:
            if kind not in known[state]["prompts"]:
                yield f"{state}.prompts.{kind}: the data set has no such prompts"
        for kind, wanted in known[state]["prompts"].items():
            records = given["prompts"].get(kind)
            if not isinstance(records, Sequence) or not all(isinstance(one, Mapping) for one in records):
                yield f"{state}.prompts.{kind}: missing; it must be a list of {len(wanted)} objects"
                continue
            asked = [one.get("prompt") for one in records]
            expected = [one["prompt"] for one in wanted]
            if asked != expected:
                yield f"{state}.prompts.{kind}: {_changed(asked, expected)}"
                continue
            for place, (one, other) in enumerate(zip(records, wanted, strict=True)):
                where = f"{state}.prompts.{kind}[{place}]"
                yield from (f"{where}{problem}" for problem in _prompt_problems(kind, one, other))
        if state == "before":
            yield from _same_before(given["prompts"], known["before"]["prompts"])


def _changed(asked: Sequence[Any], expected: Sequence[str]) -> str:
    if len(asked) != len(expected):
        return f"{len(asked)} prompts in the place of {len(expected)}"
    first = next(place for place, (one, other) in enumerate(zip(asked, expected, strict=True)) if one != other)
    return f"changed prompt: [{first}] is {_shown(asked[first])}, and {_shown(expected[first])} in the data set"


def _prompt_problems(kind: str, record: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with one prompt's record; `known` says which fields it has to have."""
    for name in known:
        if name not in record and name not in ("p_new", "p_true", "entropy", "strict", "lenient", "group"):
            yield f".{name}: missing"
    for name in ("log_probs", "log_probs_new", "log_probs_true"):
        if name in record:
            logs = record[name]
            if not isinstance(logs, Sequence) or not logs or not all(_is_number(value) for value in logs):
                yield f".{name}: must be a list of numbers, got {_shown(logs)}"
                return
            if max(logs) > 1e-6:
                yield f".{name}: impossible probability: log p = {max(logs)} is above 0"
                return
    if kind in PAIRED_KINDS:
        yield from _pair_problems(record)
    ids = record.get("most_likely")
    if (
        ids is not None
        and "most_likely" in known
        and not (
            isinstance(ids, Sequence)
            and all(isinstance(one, int) for one in ids)
            and len(ids) == len(known["most_likely"])
        )
    ):
        yield f".most_likely: must be a list of {len(known['most_likely'])} tokens' ids, got {_shown(ids)}"
    scored = record.get("log_probs_new", record.get("log_probs"))
    if "token_accuracy" in record and scored is not None:
        yield from _accuracy_problems(record["token_accuracy"], scored, record.get("log_probs_true"))
    if "kl" in record and not (_is_number(record["kl"]) and record["kl"] >= -1e-6):
        yield f".kl: must be a number that is not negative, got {_shown(record['kl'])}"
    for name, wanted in (("answer", str), ("text", str), ("preserved", bool)):
        if name in record and not isinstance(record[name], wanted):
            yield f".{name}: must be a {wanted.__name__}, got {_shown(record[name])}"


def _pair_problems(record: Mapping[str, Any]) -> Iterator[str]:
    pair = paired_probabilities(record)
    if pair is None:
        return
    if len(record["log_probs_new"]) == len(record["log_probs_true"]) and sum(pair) > 1 + 1e-4:
        # Two different continuations of the same length exclude each other.
        yield f": impossible probabilities: P(new) + P(true) = {sum(pair):.4f} is above 1"
    for name, value in zip(("p_new", "p_true"), pair, strict=True):
        if name in record and not (_is_number(record[name]) and abs(record[name] - value) <= CLOSE):
            yield f".{name}: is {_shown(record[name])}, but the log-probabilities give {value:.6f}"


def _accuracy_problems(accuracy: Any, logs: Sequence[float], others: Sequence[float] | None) -> Iterator[str]:
    hits = accuracy * len(logs) if _is_number(accuracy) else math.nan
    if not (0 <= hits <= len(logs) and abs(hits - round(hits)) < 1e-3):
        yield f".token_accuracy: must be a share of {len(logs)} tokens, got {_shown(accuracy)}"
        return
    if others and others[0] > logs[0] + CLOSE and round(hits) == len(logs):
        yield f".token_accuracy: is {accuracy}, but the true object's first token is more likely than the new one's"
    certain = sum(value > math.log(0.5) + 1e-6 for value in logs)
    if round(hits) < certain:
        yield f".token_accuracy: is {accuracy}, but {certain} of {len(logs)} tokens are more likely than one half"


def _same_before(given: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[str]:
    """The unedited model is the same: what it gives before the edit is known."""
    for kind in PAIRED_KINDS:
        for place, (one, other) in enumerate(zip(given.get(kind) or [], known.get(kind) or [], strict=False)):
            try:
                mine, theirs = paired_probabilities(one), paired_probabilities(other)
            except (TypeError, ValueError, OverflowError, AttributeError):
                return  # said elsewhere
            if mine is None or theirs is None:
                continue
            for name, value, expected in zip(("P(new)", "P(true)"), mine, theirs, strict=True):
                if abs(value - expected) > SAME_MODEL:
                    yield (
                        f"before.prompts.{kind}[{place}]: {name} is {value:.3f}, but the store's runs of this model "
                        f"have {expected:.3f}"
                    )


def _value_problems(record: Mapping[str, Any], case: Case) -> Iterator[str]:
    """Values that are given and do not follow from the records."""
    for state, found in (("before", case.before), ("after", case.after)):
        assert found is not None
        for name, value in dict(record[state].get("values") or {}).items():
            if name not in found.values:
                yield f"{state}.values.{name}: does not follow from the records"
            elif not (_is_number(value) and abs(value - found.values[name]) <= CLOSE):
                yield f"{state}.values.{name}: is {_shown(value)}, but the records give {found.values[name]:.6f}"
    for state, prompts in (("before", case.before.prompts if case.before else {}), ("after", case.after.prompts)):
        for kind, records in prompts.items():
            given = record[state]["prompts"].get(kind, [])
            for place, (one, mine) in enumerate(zip(given, records, strict=True)):
                for name in ("strict", "lenient"):
                    if name in one and one[name] != mine.get(name):
                        yield (
                            f"{state}.prompts.{kind}[{place}].{name}: is {_shown(one[name])}, but the answer "
                            f"{_shown(one.get('answer'))} gives {mine.get(name)}"
                        )
                if "entropy" in one and not (
                    _is_number(one["entropy"]) and abs(one["entropy"] - mine["entropy"]) <= CLOSE
                ):
                    yield f"{state}.prompts.{kind}[{place}].entropy: the text gives {mine['entropy']:.6f}"


def _claims(submission: Mapping[str, Any], cases: Sequence[Case]) -> Iterator[str]:
    """Averages that are claimed and do not follow."""
    metrics = Evaluation(tuple(cases)).metrics
    for name, value in dict(submission.get("claimed") or {}).items():
        if name not in metrics:
            yield f"claimed.{name}: the records give no such metric"
            continue
        after = metrics[name]["after"]
        assert after is not None
        if not (_is_number(value) and abs(value - after) <= 10 * CLOSE):
            yield f"claimed.{name}: is {_shown(value)}, but the records give {after:.4f}"


def _write(
    folder: RunFolder,
    number: str,
    submission: Mapping[str, Any],
    cases: Sequence[Mapping[str, Any]],
    peer: StoredRun,
) -> None:
    """Puts a checked submission into a run's folder."""
    config = _config(submission, peer)
    config["submission"] = {"number": number, **config["submission"]}
    folder.begin(OmegaConf.to_yaml(OmegaConf.create(config)))
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
    evaluation = Evaluation(tuple(Case.from_dict(record) for record in cases))
    seconds = [record["seconds"] for record in cases if record["seconds"] is not None]
    folder.finish(
        {
            **{name: submission[name] for name in ("editor", "model", "data", "mode")},
            **prints,
            "n_facts": len(cases),
            "n_failed": len(evaluation.failures),
            "seconds_per_edit": sum(seconds) / len(seconds) if seconds else None,
            "peak_memory_mb": submission.get("peak_memory_mb"),
            "metrics": evaluation.metrics,
        }
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
