"""The form of a submission (docs/submissions.md): models that check it, say what is wrong, and give its JSON schema.

What the fields say, and whether it fits the data set and the model, is checked in `eval.leaderboard.submission_checks`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, ValidationError, WrapValidator
from pydantic_core import PydanticCustomError

from eval.leaderboard.entries import LARGEST
from eval.measurement import HeldOut
from eval.records import LOG_PROBS

SCHEMA = "corrigenda-submission/1"

ROUNDED = 1e-6
"""How far above 0 the logarithm of a probability may be, and how far below it a KL."""

Place = tuple[str | int, ...]
"""Where in the submission something is: names of fields and numbers of entries, from the outside in."""


@dataclass(frozen=True)
class FormProblem:
    """Something that is wrong with a submission's form, and where; with no place for the whole of it."""

    place: Place
    what: str

    @property
    def case(self) -> int | None:
        """The number of the case, if it is in one."""
        first, number = (*self.place, None, None)[:2]
        return number if first == "cases" and isinstance(number, int) else None

    def text(self, of_case: str = "") -> str:
        """The problem in words; `of_case` is how its case is called."""
        place = self.place if self.case is None else self.place[2:]
        if self.case is not None and place in ((), ("id",)):
            return f"cases[{self.case}]: must be an object with an 'id'"
        if len(place) == 1:
            where = f"'{place[0]}' "
        else:
            where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
            where += ": " if any(isinstance(part, int) for part in place) else " " if where else ""
        return f"{of_case or f'cases[{self.case}]'}: {where}{self.what}" if self.case is not None else where + self.what


def shown(value: Any) -> str:
    """A value, shortened for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _wrong(what: str, value: Any) -> PydanticCustomError:
    return PydanticCustomError("form", "must be {what}, got {value}", {"what": what, "value": shown(value)})


def _must_be(what: str) -> WrapValidator:
    """Says in these words what is wrong with a value that does not fit the type."""

    def check(value: Any, fits: Callable[[Any], Any]) -> Any:
        try:
            return fits(value)
        except ValidationError:
            raise _wrong(what, value) from None

    return WrapValidator(check)


def _of_kind(what: str, kind: type, filled: bool = False) -> BeforeValidator:
    """The same for a value with parts, whose own problems are said where they are."""

    def check(value: Any) -> Any:
        if not isinstance(value, kind) or (filled and not value):
            raise _wrong(what, value)
        return value

    return BeforeValidator(check)


def _possible(value: list[float | None]) -> list[float | None]:
    highest = max((one for one in value if one is not None), default=0.0)
    if highest > ROUNDED:
        raise PydanticCustomError("form", "impossible probability: log p = {value} is above 0", {"value": highest})
    return value


def _log_probs(value: Any, fits: Callable[[Any], list[float | None]]) -> list[float | None]:
    try:
        found = fits(value)
    except ValidationError:
        raise _wrong("a list of numbers", value) from None
    return _possible(found)


_Number = Annotated[float, Strict(), Field(allow_inf_nan=False, ge=-LARGEST, le=LARGEST)]
_Object = _of_kind("an object", dict)
Text = Annotated[str, Strict(), _must_be("a text")]
Name = Annotated[str, Strict(), Field(min_length=1), _must_be("a text that is not empty")]
Flag = Annotated[bool, Strict(), _must_be("true or false")]
WholeNumber = Annotated[int, Strict(), _must_be("a whole number")]
Count = Annotated[int, Strict(), Field(ge=0), _must_be("a whole number that is not negative")]
Number = Annotated[_Number, _must_be("a number")]
NotNegative = Annotated[_Number, Field(ge=0), _must_be("a number that is not negative")]
Positive = Annotated[_Number, Field(gt=0), _must_be("a positive number")]
Share = Annotated[_Number, Field(ge=0, le=1), _must_be("a share of the tokens, from 0 to 1")]
Divergence = Annotated[_Number, Field(ge=-ROUNDED), _must_be("a number that is not negative")]
TokenIds = Annotated[list[Annotated[int, Strict()]], _must_be("a list of tokens' ids")]
LogProbs = Annotated[list[_Number | None], Field(min_length=1), WrapValidator(_log_probs)]

_OPTIONAL: Any = Field(default=None)
"""A field that may be left out, but is of its type where it is there."""


class _Form(BaseModel):
    """What is not named here is allowed, and ignored."""

    model_config = ConfigDict(extra="allow")


class PromptRecord(_Form):
    """What a model did with one prompt.

    Null stands for what is no number (NaN), in a case whose edit failed.
    """

    prompt: Text = Field(description="word for word as in the data set")
    log_probs_new: LogProbs = _OPTIONAL
    log_probs_true: LogProbs = _OPTIONAL
    log_probs: LogProbs = _OPTIONAL
    log_probs_right: LogProbs = _OPTIONAL
    log_probs_wrong: LogProbs = _OPTIONAL
    most_likely: TokenIds = _OPTIONAL
    token_accuracy: Share = _OPTIONAL
    answer: Text = _OPTIONAL
    kl: Divergence | None = _OPTIONAL
    preserved: Flag = _OPTIONAL
    same_tokens: Count = _OPTIONAL
    blank: Flag = _OPTIONAL
    text: Text = _OPTIONAL
    p_new: Number | None = _OPTIONAL
    p_true: Number | None = _OPTIONAL
    strict: Flag = _OPTIONAL
    lenient: Flag = _OPTIONAL
    begins_true: Flag = _OPTIONAL
    says_true: Flag = _OPTIONAL
    says_new: Flag = _OPTIONAL
    content_word: Text = _OPTIONAL
    entropy: Number = _OPTIONAL


PromptRecords = Annotated[
    list[Annotated[PromptRecord, _Object]], _of_kind("a list of objects", list), Field(description="in order")
]


def _windows(value: Any) -> Any:
    try:
        HeldOut.from_dict(value)
    except (KeyError, TypeError, ValueError):
        raise _wrong("lists of one length, not empty: windows, log_probs, tokens", value) from None
    return value


class State(_Form):
    """What the unedited or the edited model did with a case's prompts."""

    prompts: Annotated[dict[str, PromptRecords], _Object] = Field(description="by kind of prompt")
    values: Annotated[dict[str, Number | None], _Object] | None = _OPTIONAL
    held_out: Annotated[dict[str, Any], BeforeValidator(_windows)] = _OPTIONAL


class CaseRecord(_Form):
    """One fact. A case with an `error` counts as failed."""

    id: Name
    before: Annotated[State, _of_kind("an object with 'prompts'", dict)]
    after: Annotated[State, _of_kind("an object with 'prompts'", dict)]
    seconds: NotNegative | None = Field(default=None, description="that the edit took")
    error: Text | None = Field(default=None, description="why there is no edit")
    fact: Annotated[dict[str, Any], _Object] = _OPTIONAL


class Submission(_Form):
    """A submission: a method, and its records of all cases of a data set."""

    form: Annotated[Literal["corrigenda-submission/1"], _must_be(repr(SCHEMA))] = Field(alias="schema")
    editor: Name = Field(description="the method's name, as tables shall show it")
    model: Name
    data: Name
    mode: Annotated[Literal["single", "batch", "sequential"], _must_be("one of single, batch, sequential")]
    cases: Annotated[
        list[Annotated[CaseRecord, _Object]],
        _of_kind("a list that is not empty", list, filled=True),
        Field(min_length=1),
    ]
    seed: WholeNumber = 0
    config: Annotated[dict[str, Any], _Object] = Field(default={}, description="the method's settings")
    claimed: Annotated[dict[str, Any], _Object] = Field(default={}, description="averages by metric")
    by: Text = _OPTIONAL
    url: Text = _OPTIONAL
    machine: Any = None
    notes: Any = None
    peak_memory_mb: Positive | None = None


def submission_schema() -> dict[str, Any]:
    """The form of a submission as a JSON schema (draft 2020-12)."""
    schema = Submission.model_json_schema(by_alias=True)
    for part in (schema, *schema["$defs"].values()):
        for field in part["properties"].values():
            if field.get("default", 0) is None:
                del field["default"]  # left out, not null
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def form_problems(submission: Any) -> list[FormProblem]:
    """All that is wrong with a submission's form."""
    if not isinstance(submission, Mapping):
        return [FormProblem((), f"must be an object, got {type(submission).__name__}")]
    found = []
    try:
        Submission.model_validate(submission)
    except ValidationError as invalid:
        for error in invalid.errors(include_url=False):
            found.append(FormProblem(error["loc"], "is missing" if error["type"] == "missing" else error["msg"]))
    cases = submission.get("cases")
    for number, case in enumerate(cases if isinstance(cases, list) else ()):
        found += [FormProblem(("cases", number, *place), what) for place, what in _unexplained_nulls(case)]
    return found


def undefined(record: Mapping[str, Any]) -> bool:
    """Whether some log-probabilities of a prompt are no numbers (null)."""
    return any(None in record[name] for name in LOG_PROBS if isinstance(record.get(name), list))


def _unexplained_nulls(case: Any) -> Iterator[tuple[Place, str]]:
    """Nulls in the place of figures where no edit failed."""
    if not isinstance(case, Mapping):
        return
    for state in ("before", "after"):
        prompts = case[state].get("prompts") if isinstance(case.get(state), Mapping) else None
        if state == "after" and case.get("error"):
            continue
        for kind, records in prompts.items() if isinstance(prompts, Mapping) else ():
            for number, record in enumerate(records if isinstance(records, list) else ()):
                if isinstance(record, Mapping) and record.get("kl", 0.0) is None and not undefined(record):
                    yield (state, "prompts", kind, number, "kl"), f"must be a number, got None; {_NULL}"
                for name in LOG_PROBS if isinstance(record, Mapping) and undefined(record) else ():
                    if isinstance(record.get(name), list) and None in record[name]:
                        what = f"must be a list of numbers, got {shown(record[name])}"
                        yield (state, "prompts", kind, number, name), f"{what}; {_NULL}"


_NULL = "null stands for NaN after an edit that failed, and the case's 'error' has to say so"
