"""`explain`: one fact before and after an edit, for a page that shows it all."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from corrigenda import ContextLengthError, Edit, EditRefusedError, Fact, LanguageModel
from corrigenda.facts import as_fact
from corrigenda.settings.checked import check_class
from corrigenda.system.files import expanded, write_json, write_text
from corrigenda.system.progress import track
from corrigenda.text.display import on_one_line
from editing.editor import Editor
from eval import Case, EvalSettings, Evaluation, measure
from eval.evaluation import judged
from eval.measurement import finite
from eval.scoring.fitting import prepare
from eval.verification.verify import Changed, changed_next_to
from jobs.explain.answers import answers
from jobs.explain.grids import Grid
from jobs.explain.part import PageContext
from jobs.explain.parts import PARTS
from jobs.explain.prose import edit_grids
from jobs.explain.settings import ExplainSettings
from locate import EditLensResult
from locate.lens.edit_lens import EditLens

logger = logging.getLogger(__name__)

FORMAT = 1
"""The version of the data in a page."""


@dataclass(frozen=True, eq=False)
class Found:
    """What one part found without or with the edit: results of `locate` and their grids; or why they are `absent`."""

    results: tuple[Any, ...] = ()
    grids: tuple[Grid, ...] = ()
    absent: str = ""


@dataclass(frozen=True, eq=False)
class Explanation:
    """One fact before and after an edit.

    Attributes:
        fact: the fact.
        model: the model's name.
        editor: the editor's.
        edit: what the edit is, in words; empty where there is none.
        error: why there is no edit; empty where there is one.
        settings: how far the parts went.
        before: by part (`jobs.explain.parts.PARTS`) what it found without the edit.
        after: the same with it.
        written: what the edit wrote: an `EditLensResult`.
        case: what the model did with the fact's prompts before and after; None where it could not be asked.
        no_answers: why there is no case; empty where there is one.
        seconds: how long each step took.
    """

    fact: Fact
    model: str
    editor: str
    edit: str
    error: str
    settings: ExplainSettings
    before: Mapping[str, Found]
    after: Mapping[str, Found]
    written: Found
    case: Case | None
    no_answers: str
    seconds: Mapping[str, float]

    @property
    def changed(self) -> tuple[Changed, ...]:
        """The prompts next to the fact at which the model goes on differently."""
        return () if self.case is None else changed_next_to(self.case)

    def to_dict(self) -> dict[str, Any]:
        """All that the page shows, as JSON values; the page has them in a block of its own, with the id "data"."""
        sides = {"before": self.before, "after": self.after}
        case = self.case
        return {
            "format": FORMAT,
            "fact": self.fact.to_dict(),
            "statement": self.fact.statement,
            "target_new": self.fact.target_new,  # a fact leaves out what it has not
            "target_true": self.fact.target_true,
            "model": self.model,
            "editor": self.editor,
            "edit": self.edit,
            "error": self.error,
            "settings": asdict(self.settings),
            "continued_tokens": _eval_settings(self.settings).preservation_tokens,
            "seconds": dict(self.seconds),
            "parts": {name: {side: _plain(found[name]) for side, found in sides.items()} for name in PARTS},
            "written": _plain(self.written),
            "answers": {}
            if case is None or case.before is None
            else answers(self.fact, case.before, None if case.error else case.after),
            "no_answers": self.no_answers,
            "metrics": {} if case is None else Evaluation((case,)).metrics,
        }

    def html(self) -> str:
        """The page: one file that loads nothing."""
        from jobs.explain.page import page

        return page(self.to_dict())

    def write(self, path: str | Path) -> None:
        """Writes the page, as HTML.

        Raises:
            ValueError: the path does not end in .html.
        """
        write_text(html_path(path), self.html())

    def save(self, path: str | Path) -> None:
        """Writes the data of the page, as JSON."""
        write_json(Path(path), finite(self.to_dict()))


def html_path(path: str | Path) -> Path:
    """The path of a page. Raises ValueError: it does not end in .html."""
    path = expanded(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{path}: a fact's page is written as HTML; name a file that ends in .html")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file in it, {path.name}/fact.html")
    return path


def explain(
    lm: LanguageModel, fact: Fact, editor: Editor | Edit, settings: ExplainSettings | None = None
) -> Explanation:
    """Looks at one fact before and after an edit: lens, tracing, neurons, sub-updates, attribution, circuit, answers.

    What cannot be computed (of a mixture of experts, of an encoder, of an edit that changes no values) is absent, and
    says why. So is all that comes after an edit that was refused. The model is, bit for bit, what it was.

    Args:
        lm: the model; edits that are applied already are part of both sides.
        fact: the fact.
        editor: makes the edit; or an edit that is there already.
        settings: how far the parts go.

    Raises:
        TypeError: the fact, the editor or the settings are something else.
        ValueError: the fact is longer than the model reads; or the edit is applied already.
    """
    as_fact("explain", fact)
    settings = ExplainSettings() if settings is None else settings
    check_class("explain", "settings", settings, ExplainSettings)
    if not isinstance(editor, (Edit, Editor)) or isinstance(editor, type):
        raise TypeError(f"explain: editor={editor!r:.80} must be an editor with its settings (Rome()), or an Edit")
    if isinstance(editor, Edit) and editor in lm.edits:
        raise ValueError(f"explain: the {editor.kind} edit is applied to {lm.name} now; revert it first")
    asked = _eval_settings(settings)
    # Texts that are sampled after a prompt say nothing here, and take long.
    fact_asked = replace(fact, generation=())
    if reason := prepare(lm, fact_asked, asked).error:
        raise ValueError(f"explain: {reason}")
    return _Explaining(lm, fact, fact_asked, editor, settings, asked).explained()


def _eval_settings(settings: ExplainSettings) -> EvalSettings:
    return EvalSettings(max_new_tokens=settings.answer_tokens, perplexity_windows=0, seed=settings.seed)


class _Explaining:
    """The steps of `explain`, with what each took."""

    def __init__(
        self,
        lm: LanguageModel,
        fact: Fact,
        asked: Fact,
        editor: Editor | Edit,
        settings: ExplainSettings,
        measured: EvalSettings,
    ) -> None:
        self.lm, self.fact, self.asked, self.editor = lm, fact, asked, editor
        self.settings, self.measured = settings, measured
        self.seconds: dict[str, float] = {}
        self.sides: dict[str, dict[str, Found]] = {"before": {}, "after": {}}
        self.found = Found(absent="there is no edit")
        self.made: Edit | None = None
        self.error = self.no_answers = ""
        self.case: Case | None = None

    def explained(self) -> Explanation:
        steps: dict[str, Callable[[], None]] = {"edit": self._edit, "written": self._written, "answers": self._answers}
        for name in PARTS:
            steps[name] = lambda name=name: self._part(name)  # type: ignore[misc]
        for name in track(list(steps), f"Explaining: {on_one_line(self.fact.statement)}"):
            begin = time.perf_counter()
            steps[name]()
            self.seconds[name] = time.perf_counter() - begin
        name = self.editor.origin.editor if isinstance(self.editor, Edit) else self.editor.name
        return Explanation(
            fact=self.fact,
            model=self.lm.name,
            editor=name,
            edit="" if self.made is None else self.made.describe(),
            error=self.error,
            settings=self.settings,
            before=self.sides["before"],
            after=self.sides["after"],
            written=self.found,
            case=self.case,
            no_answers=self.no_answers,
            seconds=self.seconds,
        )

    def _edit(self) -> None:
        if isinstance(self.editor, Edit):
            self.made = self.editor
            return
        try:
            self.made = self.editor.edit(self.lm, [self.fact])
        except (EditRefusedError, ContextLengthError) as refusal:
            self.error = f"refused: {refusal}"

    def _written(self) -> None:
        if self.made is None:
            return
        # Of an edit of many facts the page reads what is written at its own.
        origin = self.made.origin
        own = tuple(fact for fact in origin.facts if fact.id == self.fact.id)
        edit = replace(self.made, origin=replace(origin, facts=own))

        def read() -> Found:
            reading: EditLensResult = EditLens(words=self.settings.words).read(self.lm, edit)
            return Found((reading,), tuple(edit_grids(reading)), "" if reading.layers else "the edit changed no layer")

        try:
            self.found = self._attempt("what the edit wrote", read)
        except TypeError as error:  # of a kind that changes no values
            self.found = Found(absent=_line(error))

    def _answers(self) -> None:
        try:
            before = measure(self.lm, [self.asked], self.measured)
            if self.made is None:
                [only] = before
                self.case = judged(self.asked, only, only, error=self.error)
                return
            with self.made.applied(self.lm):
                [after] = measure(self.lm, [self.asked], self.measured, before)
                self.case = judged(self.asked, before[0], after)
                self.error = self.case.error
        except ValueError as error:
            self.no_answers = _line(error)

    def _part(self, name: str) -> None:
        part = PARTS[name]

        def find(edited: bool) -> Found:
            before = self.sides["before"][name].results if edited else ()
            asked = PageContext(self.lm, self.fact, self.settings, edited, before)
            results = part.find(asked)
            return Found(results, tuple(part.grids(asked, results)))

        self.sides["before"][name] = self._attempt(part.title, lambda: find(False))
        if self.made is None:
            self.sides["after"][name] = Found(absent=f"there is no edit ({self.error})")
            return
        with self.made.applied(self.lm):
            self.sides["after"][name] = self._attempt(part.title, lambda: find(True))

    def _attempt(self, what: str, find: Callable[[], Found]) -> Found:
        """What is found; or the one line that says why it cannot be."""
        try:
            return find()
        except ValueError as error:
            logger.info("%s: %s", what, error)
            return Found(absent=_line(error))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _plain(found: Found) -> dict[str, Any]:
    return {"absent": found.absent, "grids": [grid.to_dict() for grid in found.grids]}
