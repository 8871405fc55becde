"""What only we can check of a submission: whether its cases are the data set's, and its figures follow from them."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from eval.evaluation import Case, Evaluation
from eval.leaderboard.submission_form import Place, shown, undefined
from eval.metrics.success import paired_probabilities
from eval.records import PAIRED_KINDS

CLOSE = 1e-4
"""How far a figure may be from what the records give: what rounding to four digits does."""

SAME_MODEL = 0.02
"""How far P before the edit may be from that of the store's runs of the same model: other kernels, other precision."""

_OF_THE_ANSWER = ("strict", "lenient", "begins_true", "says_true", "says_new", "content_word")
"""Fields of a prompt's record that follow from its answer."""

_MAY_BE_LEFT_OUT = ("p_new", "p_true", "entropy", *_OF_THE_ANSWER, "group", "expected", "tied")
"""Fields of a prompt's record that follow from others, from the data set, or from how it was computed."""


def case_problems(record: Mapping[str, Any], known: Mapping[str, Any], wrong: Iterable[Place] = ()) -> Iterator[str]:
    """What is wrong with one case's records, compared with those of the same case in a run of the store.

    The places `wrong`, whose form is, are passed over.
    """
    places = list(wrong)

    def whole(*place: str | int) -> bool:
        """Whether the form of what holds a place is right, and that of the place itself."""
        return not any(place[: len(bad)] == bad for bad in places)

    if "fact" in record and whole("fact") and record["fact"] != known["fact"]:
        different = sorted(
            name for name in {*record["fact"], *known["fact"]} if record["fact"].get(name) != known["fact"].get(name)
        )
        yield f"changed fact: {', '.join(different)} differ from the data set's"
    if whole("before", "held_out") and whole("after", "held_out"):
        read = [record[state].get("held_out", {}).get("windows") for state in ("before", "after")]
        if read[0] != read[1]:
            yield "before.held_out and after.held_out must be of the same windows, or both left out"
    for state in ("before", "after"):
        if not whole(state):
            continue
        if whole(state, "values", "log_perplexity"):
            yield from _level_problems(state, record, known)
        if not whole(state, "prompts"):
            continue
        given = record[state]["prompts"]
        for kind in given:
            if kind not in known[state]["prompts"]:
                yield f"{state}.prompts.{kind}: the data set has no such prompts"
        for kind, wanted in known[state]["prompts"].items():
            if kind not in given:
                yield f"{state}.prompts.{kind}: missing; it must be a list of {len(wanted)} objects"
            elif whole(state, "prompts", kind):
                yield from _kind_problems((state, "prompts", kind), given[kind], wanted, places)
        if state == "before":
            yield from _same_before(given, known["before"]["prompts"], whole)
        else:
            sound = {
                kind: one
                for kind, one in given.items()
                if not any(bad[:3] == (state, "prompts", kind) for bad in places)
            }
            yield from _kept_problems(sound, known["after"]["prompts"])


def _level_problems(state: str, record: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the log-perplexity of the held-out text."""
    level = (record[state].get("values") or {}).get("log_perplexity")
    expected = known["before"]["values"].get("log_perplexity")
    if level is not None and level < 0:
        yield f"{state}.values.log_perplexity must be a number that is not negative, got {shown(level)}"
    elif level is None and expected is not None and not record.get("error"):
        yield f"{state}.values.log_perplexity: missing"
    elif state == "before" and level is not None and expected is not None and abs(level - expected) > SAME_MODEL:
        yield f"before: log perplexity is {level:.3f}, but the store's runs of this model have {expected:.3f}"


def _kind_problems(
    place: Place, records: Sequence[Any], wanted: Sequence[Mapping[str, Any]], wrong: Sequence[Place]
) -> Iterator[str]:
    """What is wrong with the records of one kind of prompts."""
    name = ".".join(map(str, place))
    asked = [one.get("prompt") if isinstance(one, Mapping) else one for one in records]
    expected = [one["prompt"] for one in wanted]
    if asked != expected:
        yield f"{name}: {_changed(asked, expected)}"
        return
    for number, (one, other) in enumerate(zip(records, wanted, strict=True)):
        if not any(bad[: len(place) + 1] == (*place, number) for bad in wrong):
            yield from (f"{name}[{number}]{problem}" for problem in _prompt_problems(str(place[-1]), one, other))


def _changed(asked: Sequence[Any], expected: Sequence[str]) -> str:
    if len(asked) != len(expected):
        return f"{len(asked)} prompts in the place of {len(expected)}"
    first = next(place for place, (one, other) in enumerate(zip(asked, expected, strict=True)) if one != other)
    return f"changed prompt: [{first}] is {shown(asked[first])}, and {shown(expected[first])} in the data set"


def _prompt_problems(kind: str, record: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with one prompt's record; `known` says which fields it has to have."""
    for name in known:
        if name not in record and name not in _MAY_BE_LEFT_OUT:
            yield f".{name}: missing"
    ids, wanted = record.get("most_likely"), known.get("most_likely")
    if ids is not None and wanted is not None and len(ids) != len(wanted):
        yield f".most_likely: must be a list of {len(wanted)} tokens' ids, got {shown(ids)}"
    if undefined(record):
        return  # of an edit that left no numbers
    if kind in PAIRED_KINDS:
        yield from _pair_problems(record)
    scored = record.get("log_probs_new", record.get("log_probs"))
    if "token_accuracy" in record and scored is not None:
        yield from _accuracy_problems(record["token_accuracy"], scored, record.get("log_probs_true"))


def _pair_problems(record: Mapping[str, Any]) -> Iterator[str]:
    pair = paired_probabilities(record)
    if pair is None:
        return
    logs = record["log_probs_new"], record["log_probs_true"]
    joint = sum(math.exp(sum(one)) for one in logs)
    if len(logs[0]) == len(logs[1]) and joint > 1 + 1e-4:
        # Two different continuations of the same length exclude each other.
        yield f": impossible probabilities: the joint P(new) + P(true) = {joint:.4f} is above 1"
    for name, value in zip(("p_new", "p_true"), pair, strict=True):
        if record.get(name) is not None and abs(record[name] - value) > CLOSE:
            yield f".{name}: is {shown(record[name])}, but the log-probabilities give {value:.6f}"


def _accuracy_problems(accuracy: float, logs: Sequence[float], others: Sequence[float] | None) -> Iterator[str]:
    hits = accuracy * len(logs)
    if abs(hits - round(hits)) >= 1e-3:
        yield f".token_accuracy: must be a share of {len(logs)} tokens, got {shown(accuracy)}"
        return
    if others and others[0] > logs[0] + CLOSE and round(hits) == len(logs):
        yield f".token_accuracy: is {accuracy}, but the true object's first token is more likely than the new one's"
    certain = sum(value > math.log(0.5) + 1e-6 for value in logs)
    if round(hits) < certain:
        yield f".token_accuracy: is {accuracy}, but {certain} of {len(logs)} tokens are more likely than one half"


def _kept_problems(given: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[str]:
    """Whether a continuation is the one before follows from how many of its tokens are."""
    both = [
        [
            (f"after.prompts.{kind}[{number}]", one["preserved"], one["same_tokens"])
            for kind in prompts
            for number, one in enumerate(prompts[kind])
            if {"preserved", "same_tokens"} <= one.keys()
        ]
        for prompts in (known, given)
    ]
    lengths = [max((same for _, kept, same in found if kept), default=None) for found in both]
    whole = next((length for length in lengths if length is not None), None)  # all are of one length
    for name, kept, same in both[1] if whole is not None else ():
        if same > whole:
            yield f"{name}.same_tokens: is {same}, but the continuations have {whole} tokens"
        elif kept != (same == whole):
            yield f"{name}.preserved: is {kept}, but {same} of {whole} tokens are the same"


def _same_before(given: Mapping[str, Any], known: Mapping[str, Any], whole: Callable[..., bool]) -> Iterator[str]:
    """The unedited model is the same: what it gives before the edit is known."""
    for kind in PAIRED_KINDS:
        records = given.get(kind, ()) if whole("before", "prompts", kind) else ()
        for number, (one, other) in enumerate(zip(records, known.get(kind) or (), strict=False)):
            fields = [whole("before", "prompts", kind, number, f"log_probs_{name}") for name in ("new", "true")]
            mine, theirs = paired_probabilities(one) if all(fields) else None, paired_probabilities(other)
            if mine is None or theirs is None:
                continue
            for name, value, expected in zip(("P(new)", "P(true)"), mine, theirs, strict=True):
                if abs(value - expected) > SAME_MODEL:
                    yield (
                        f"before.prompts.{kind}[{number}]: {name} is {value:.3f}, but the store's runs of this model "
                        f"have {expected:.3f}"
                    )


def value_problems(record: Mapping[str, Any], case: Case) -> Iterator[str]:
    """Values that are given and do not follow from the records."""
    for state, found in (("before", case.before), ("after", case.after)):
        assert found is not None
        for name, value in dict(record[state].get("values") or {}).items():
            if value is None and case.error:
                continue  # no number, and not in the case either
            if name not in found.values:
                yield f"{state}.values.{name}: does not follow from the records"
            elif not (_is_number(value) and abs(value - found.values[name]) <= CLOSE):
                yield f"{state}.values.{name}: is {shown(value)}, but the records give {found.values[name]:.6f}"
    for state, prompts in (("before", case.before.prompts if case.before else {}), ("after", case.after.prompts)):
        for kind, records in prompts.items():
            given = record[state]["prompts"].get(kind, [])
            for place, (one, mine) in enumerate(zip(given, records, strict=True)):
                for name in _OF_THE_ANSWER:
                    if name in one and one[name] != mine.get(name):
                        yield (
                            f"{state}.prompts.{kind}[{place}].{name}: is {shown(one[name])}, but the answer "
                            f"{shown(one.get('answer'))} gives {mine.get(name)}"
                        )
                if "entropy" in one and not (
                    _is_number(one["entropy"]) and abs(one["entropy"] - mine["entropy"]) <= CLOSE
                ):
                    yield f"{state}.prompts.{kind}[{place}].entropy: the text gives {mine['entropy']:.6f}"


def claim_problems(submission: Mapping[str, Any], cases: Sequence[Case]) -> Iterator[str]:
    """Averages that are claimed and do not follow."""
    metrics = Evaluation(tuple(cases)).metrics
    for name, value in dict(submission.get("claimed") or {}).items():
        if name not in metrics:
            yield f"claimed.{name}: the records give no such metric"
            continue
        after = metrics[name]["after"]
        assert after is not None
        if not (_is_number(value) and abs(value - after) <= 10 * CLOSE):
            yield f"claimed.{name}: is {shown(value)}, but the records give {after:.4f}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
