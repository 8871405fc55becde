"""The errors that Corrigenda raises for what its user can mend; each is also the built-in error that fits.

``except CorrigendaError`` catches them all, also those of editors, locators, the evaluation and the program.
"""

from typing import Literal

_LONGEST = 400
"""Characters of what an error says of a field: a subject may be a book."""


class CorrigendaError(Exception):
    """What is wrong, where, and what to do about it, in one line."""


class ChecksumError(CorrigendaError, ValueError):
    """A file is not the one that was published; the message gives both hashes."""


class ContextLengthError(CorrigendaError, ValueError):
    """A text is longer than a model reads, or a target than is scored; one line says what, how long, and the limit.

    Attributes:
        n_tokens: how many tokens it has.
        limit: how many it may have.
    """

    def __init__(self, message: str, n_tokens: int, limit: int) -> None:
        super().__init__(message)
        self.n_tokens = n_tokens
        self.limit = limit


class DamagedFileError(CorrigendaError, ValueError):
    """A file does not hold what was written to it; the message names it."""


class DamagedModelError(CorrigendaError, ValueError):
    """A model whose files cannot be read or do not fit each other; the message says which, in one line."""


class EditRefusedError(CorrigendaError, ValueError):
    """An editor will not make an edit: what is asked for is beyond it, or what it computed would wreck the model."""


class FactError(CorrigendaError, ValueError):
    """A field of a fact that cannot be used.

    Attributes:
        field: the name of the field at fault, as it stands in `Fact` (or in the record it was read from).
        problem: what is wrong with it, with the offending value; of a long one the middle is left out.
    """

    def __init__(self, field: str, problem: str) -> None:
        if len(problem) > _LONGEST:
            problem = f"{problem[: _LONGEST // 2]} ... {problem[-_LONGEST // 3 :]}"
        super().__init__(f"field '{field}': {problem}")
        self.field = field
        self.problem = problem

    def __reduce__(self) -> tuple[object, ...]:
        # The default would rebuild from the message alone and fail; errors come back from worker processes.
        return type(self), (self.field, self.problem)


class InferenceModeError(CorrigendaError, RuntimeError):
    """Something that takes gradients was called under `torch.inference_mode`, where there are none."""


class KnowledgeBaseError(CorrigendaError, RuntimeError):
    """A knowledge base's file cannot be used; one line says which file, why, and what to do."""


class LockedError(CorrigendaError, RuntimeError):
    """Another live process holds the lock."""


class ModelNotFoundError(CorrigendaError, FileNotFoundError):
    """No model goes by the name given; the message says what was looked for and where."""


class RecordError(CorrigendaError, ValueError):
    """A record that cannot become a fact.

    Attributes:
        source: the file, folder or hub id that the record comes from.
        number: where it stands, counted from 1: the line of a JSONL file, else the record's place in the list or split.
        field: path of the field at fault as the file's own schema names it, e.g. ``requested_rewrite.target_new.str``;
            empty when the whole record is at fault.
        problem: what is wrong, with the offending value.
        unit: what `number` counts, "line" or "record".
    """

    def __init__(
        self, source: str, number: int, field: str, problem: str, unit: Literal["line", "record"] = "record"
    ) -> None:
        where = f"{source}, {unit} {number}"
        super().__init__(f"{where}, field '{field}': {problem}" if field else f"{where}: {problem}")
        self.source = source
        self.number = number
        self.field = field
        self.problem = problem
        self.unit = unit

    def __reduce__(self) -> tuple[object, ...]:
        # The default would rebuild from the message alone; sets of facts travel to worker processes.
        return type(self), (self.source, self.number, self.field, self.problem, self.unit)


class SettingsError(CorrigendaError, ValueError):
    """A setting that cannot be; one line names the class, the field, the value and what it has to be."""


class UnsupportedModelError(CorrigendaError, ValueError):
    """A model in which the parts that Corrigenda works on could not be found; the message says which."""


class WrongModelError(CorrigendaError, ValueError):
    """This is not the model that something was made on, or no longer."""
