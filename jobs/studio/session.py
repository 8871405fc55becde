"""`Session`: the one model, list and edit that all tabs of a studio see; every step is a call of the public API."""

import logging
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

from corrigenda import Edit, Fact, LanguageModel
from corrigenda.data.requests import active_facts
from corrigenda.errors import CorrigendaError
from corrigenda.knowledge.plan import Plan
from corrigenda.runs.folder import RunFolder
from corrigenda.system.files import write_text
from corrigenda.system.progress import counted, heard, how_far, track
from editing import Editor, prepare
from eval import EvalSettings, measure
from eval.verification.page import page
from eval.verification.report import report_of
from eval.verification.verify import verify
from jobs.explain.explanation import explain
from jobs.explain.settings import ExplainSettings
from jobs.shared.errors import RunFailedError
from jobs.studio.corrections import Corrections
from locate import CausalTrace, Noise

logger = logging.getLogger(__name__)

TRIED = EvalSettings(only=("prompt",), max_new_tokens=12, perplexity_windows=0)
"""How it is looked whether a correction holds."""
AT_ONCE = 16
"""So many corrections are tried at once."""
BARS = 8
"""So many next tokens are shown."""
ANSWER = 20
"""Tokens of a free answer."""
_NAMES = {"gguf": "model.gguf"}
"""What a form of ``job=export`` that is a file is called."""


class BusyError(CorrigendaError, RuntimeError):
    """Something else is under way in the one model."""


@dataclass(frozen=True)
class Said:
    """What the model says to a prompt: a greedy continuation, and the likeliest next tokens with probabilities."""

    text: str
    tokens: list[tuple[str, float]]


@dataclass
class Doing:
    """What is under way, and how far it is: a share, or None where that is not known."""

    what: str
    step: str = ""
    share: float | None = None
    begin: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        return f"{self.step or self.what} ({time.monotonic() - self.begin:.0f} s)"


class Session:
    """What a studio is at.

    Args:
        lm: the model.
        corrections: the list.
        editors: those that can be chosen, by name.
        folder: where pictures, pages and what is taken along are written; it is made when something is.
        model: what of the command line chooses the model, for commands that load it again.

    Attributes:
        edit: the edit that is applied; None where the model is as it was loaded.
        tried: for each fact that was tried on the model as it is, whether it holds, and what the model says.
        doing: what is under way; None where nothing is.
        notes: warnings of the last piece of work.
        taken: what was taken along: where it lies, and what is said of it.
        version: grows whenever something of this changes.
    """

    def __init__(
        self,
        lm: LanguageModel,
        corrections: Corrections,
        editors: Mapping[str, Editor],
        folder: Path,
        model: Sequence[str] = (),
    ) -> None:
        self.lm, self.corrections, self.editors, self.folder, self.model = lm, corrections, editors, folder, model
        self.edit: Edit | None = None
        self.tried: dict[Fact, tuple[bool, str]] = {}
        self.doing: Doing | None = None
        self.notes: tuple[str, ...] = ()
        self.version = 0
        self.taken: list[tuple[Path, str]] = []
        self._made: dict[tuple[str, tuple[Fact, ...]], Edit] = {}
        self._alone = threading.Lock()
        self._prepared = threading.Event()
        self._prepared.set()

    @contextmanager
    def at_work(self, what: str) -> Iterator[None]:
        """Holds the model for one piece of work. Raises BusyError: another one is under way."""
        if not self._alone.acquire(blocking=False):
            raise BusyError(f"{self.doing.what if self.doing else 'something else'} is under way; press again later")
        log, notes = logging.getLogger(), _Notes()
        try:
            self.doing = doing = Doing(what)
            log.addHandler(notes)

            def hear(step: str, done: int, total: int | None) -> None:
                doing.share = done / total if total else None
                seconds = time.monotonic() - doing.begin
                doing.step = step if total is None or not done else f"{step}: {how_far(done, total, seconds)}"

            with heard(hear):
                yield
        finally:
            log.removeHandler(notes)
            self.doing, self.notes = None, tuple(dict.fromkeys(notes.lines))
            self.version += 1
            self._alone.release()

    @property
    def state(self) -> str:
        """What the model is at the moment, in words."""
        if self.edit is None:
            return f"{self.lm.name} as it was loaded"
        origin = self.edit.origin
        changed = "" if origin.facts == self.active else "; the list is another by now"
        return f"{self.lm.name} with {counted(len(origin.facts), 'correction')} by {origin.editor}{changed}"

    @property
    def active(self) -> tuple[Fact, ...]:
        """The corrections of the list that another one does not supersede or repeat."""
        return active_facts(self.corrections.facts)

    def prepare(self, name: str) -> None:
        """Lets an editor compute what all its edits share, so that the first is quick; what is wrong, that one says."""
        self._prepared.clear()
        try:
            with self.at_work(f"Getting {name} ready"):
                prepare(self.editors[name], self.lm)
        except Exception:
            logger.debug("%s is not ready", name, exc_info=True)
        finally:
            self._prepared.set()

    def apply(self, name: str) -> None:
        """Makes the model follow the list by an editor, whatever was applied before; then tries every correction.

        The same editor and list again take no time: the edit is kept. Where it fails, the model is as it was.

        Raises:
            ValueError: the list is empty, or the editor refuses it.
        """
        self._prepared.wait()
        with self.at_work(f"Applying the corrections by {name}"):
            facts = self.active
            if not facts:
                raise ValueError("there is no correction in the list yet; add one first")
            if (name, facts) not in self._made:
                with self.lm.edits.suspended():
                    self._made = {(name, facts): self.editors[name].edit(self.lm, list(facts))}
            self._put(self._made[name, facts])
            self._try()

    def undo(self) -> None:
        """Takes the edit out of the model."""
        with self.at_work("Undoing"):
            self._put(None)

    def _put(self, edit: Edit | None) -> None:
        if self.edit is not None:
            self.edit.revert(self.lm)
        self.edit, self.tried = None, {}
        if edit is not None:
            edit.apply(self.lm)
            self.edit = edit

    def try_out(self) -> None:
        """Asks the model, as it is now, each correction's prompt."""
        with self.at_work("Trying the corrections"):
            self._try()

    def _try(self) -> None:
        facts = self.active
        parts = [facts[start : start + AT_ONCE] for start in range(0, len(facts), AT_ONCE)]
        for part in track(parts, f"Trying {counted(len(facts), 'correction')}"):
            for fact, found in zip(part, measure(self.lm, part, TRIED), strict=True):
                asked = found.scored("prompt")
                said = found.error or " ".join((record.answer or "").strip() for record in asked)
                self.tried[fact] = (not found.error and all(record.strict is True for record in asked), said)
            self.version += 1

    def rows(self) -> list[tuple[Fact, str, str]]:
        """Each correction with what is known of it in the model as it is now, and what the model says."""
        active, found = set(self.active), []
        for fact in self.corrections.facts:
            held, said = self.tried.get(fact, (False, ""))
            tried = "not tried" if fact not in self.tried else "held" if held else "not held"
            found.append((fact, tried if fact in active else "superseded", said))
        return found

    def ask(self, prompt: str) -> tuple[Said, Said | None]:
        """What the model says to a prompt without the edit, and with it; None where there is none.

        Raises:
            ValueError: the prompt is empty, or longer than the model reads.
        """
        if not prompt.strip():
            raise ValueError("the question is empty; write one down")
        with self.at_work("Asking"):
            with self.lm.edits.suspended():
                before = self._said(prompt.rstrip())
            return before, None if self.edit is None else self._said(prompt.rstrip())

    def _said(self, prompt: str) -> Said:
        return Said(self.lm.generate(prompt, ANSWER), self.lm.next_tokens(prompt, BARS))

    def trace(self, fact: Fact, site: Literal["block", "ffn", "attention"]) -> Path:
        """The picture of a causal trace of what the model, as it is now, says; with as much noise as in `explain`."""
        with self.at_work(f"Tracing {fact.subject}"):
            path = self.new(f"trace-{fact.id}-{site}.png")
            noise = Noise(samples=ExplainSettings().trace_samples)
            CausalTrace(site=site, noise=noise).find(self.lm, fact, "top").plot(path)
            return path

    def explain(self, fact: Fact, name: str) -> Path:
        """The page of a correction: by the edit that is applied, else by one that an editor makes of it."""
        with self.at_work(f"Looking at {fact.subject}"), self.lm.edits.suspended():
            path = self.new(f"fact-{fact.id}.html")
            explain(self.lm, fact, self.editors[name] if self.edit is None else self.edit).write(path)
            return path

    def report(self) -> Path:
        """The verification report of the corrections that are applied, as ``job=build`` writes it."""
        with self.at_work("Verifying"):
            edit = self._applied()
            facts = edit.origin.facts
            path = self.new("report.html")
            with self.lm.edits.suspended(), tempfile.TemporaryDirectory() as scratch:
                verified = verify(self.lm, edit, facts, EvalSettings(), RunFolder(scratch))
            report = report_of(facts, verified, [{} for _ in facts], Plan(new=facts), None)
            made = f"{datetime.now():%Y-%m-%d %H:%M}"
            about = f"{self.corrections.path.name} in {self.lm.name} by {edit.origin.editor}, {made}"
            write_text(path, page(report | {"about": about, "rules": [], "accepted": True}))
            self.taken.append((path, f"{report['n_holding']} of {report['n_in_force']} corrections hold"))
            return path

    def take(self, form: str) -> Path:
        """Writes the edit that is applied in a form of ``job=export``, as a new folder or file.

        Raises:
            RunFailedError: the job ended with an error, which the message is.
        """
        with self.at_work(f"Writing the {form}"):
            edit, kept, to = self._applied(), self.new("edit"), self.new(_NAMES.get(form, form))
            edit.save(kept)
            command = [sys.executable, "-m", "corrigenda", "export", str(kept), f"to={to}", f"form={form}", *self.model]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RunFailedError((done.stderr.strip().splitlines() or ["the export ended without a word"])[-1])
            self.taken.append((to, done.stdout.strip()))
            return to

    def _applied(self) -> Edit:
        if self.edit is None:
            raise ValueError("nothing is applied; apply the corrections first")
        return self.edit

    def new(self, name: str) -> Path:
        """A path in the folder that nothing has yet."""
        path = Path(re.sub(r"[^\w.-]+", "-", name))
        names = (path.name, *(f"{path.stem}-{number}{path.suffix}" for number in range(2, 10_000)))
        self.folder.mkdir(parents=True, exist_ok=True)
        return next(place for place in (self.folder / one for one in names) if not place.exists())


class _Notes(logging.Handler):
    """Warnings that come while a piece of work is done."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage().strip())
