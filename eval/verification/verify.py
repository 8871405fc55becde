"""`verify`: every fact of a list asked about freely, with and without the edit, and what is next to it compared.

It goes over the facts in parts, and writes each part down when it is done: one that was killed goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from corrigenda import Edit, Fact, LanguageModel
from corrigenda.runs.folder import RunFolder
from corrigenda.system.progress import counted, stage, track
from eval.evaluation import Case, judged
from eval.measure import measure
from eval.records import ScoredPrompt
from eval.scoring.held_out import read_held_out
from eval.settings import EvalSettings
from eval.verification.unedited import Unedited

PART = 16
"""So many facts are verified at once."""


Mark: TypeAlias = Literal["strict", "lenient"]


@dataclass(frozen=True)
class Changed:
    """A prompt, of the kind "neighbourhood" or "locality", at which the model does not go on any more as it did before.

    Where nothing is known of the unedited model: one at which it says the new object.
    """

    kind: str
    prompt: str
    before: str | None
    now: str


@dataclass(frozen=True)
class Verified:
    """One fact.

    Attributes:
        case: what the model did with its prompts before and after.
        mark: which answers hold: those that begin with the new object ("strict"), or contain it ("lenient").
    """

    case: Case
    mark: Mark = "strict"

    @property
    def changed(self) -> tuple[Changed, ...]:
        """What changed next to it."""
        return changed_next_to(self.case)

    @property
    def holds(self) -> bool:
        """Whether the free answer to its prompt holds."""
        asked = self.case.after.scored("prompt")
        return not self.case.error and bool(asked) and all(self.marked(record) is True for record in asked)

    def marked(self, record: ScoredPrompt) -> bool | None:
        """Whether one answer holds; None where there is none."""
        return record.strict if self.mark == "strict" else record.lenient

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {"id": self.case.fact.id, "case": self.case.to_dict()}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Verified:
        """What `to_dict` gave."""
        return cls(Case.from_dict(record["case"]))


def verify(
    lm: LanguageModel,
    edit: Edit,
    facts: Sequence[Fact],
    settings: EvalSettings,
    folder: RunFolder,
    unedited: Unedited | None = None,
) -> list[Verified]:
    """What the edit makes of each fact, in order; it is applied and taken back.

    Finished facts are written down in the folder, as ``cases.jsonl``; what is there already, of the same edit and
    settings, is not done again. `unedited` is what is known of the unedited model, with the same settings, which is not
    asked again; by default what lies in the folder.
    """
    done = {record["id"]: record for record in folder.cases()}
    left = [fact for fact in facts if fact.id not in done]
    parts = [left[start : start + PART] for start in range(0, len(left), PART)]
    if parts:
        old = Unedited(lm, settings, folder.path / "unedited") if unedited is None else unedited
        with stage("Reading the held-out texts, without the edit and with it"):
            old.held_out()
            with edit.applied(lm):
                texts_after = read_held_out(lm, settings)
        for part in track(parts, f"Verifying {counted(len(left), 'fact')}, {PART} at a time"):
            before = old.of(part)
            with edit.applied(lm):
                after = measure(lm, part, settings, before, held_out=texts_after)
            for case in map(judged, part, before, after):
                done[case.fact.id] = Verified(case).to_dict()
                folder.append(done[case.fact.id])
    return [Verified.from_dict(done[fact.id]) for fact in facts]


def changed_next_to(case: Case) -> tuple[Changed, ...]:
    """The prompts next to a fact at which the model does not go on as before, or says the new object."""
    old = {} if case.before is None else {record.prompt: record.answer for record in case.before.elsewhere()}
    gone = {
        record.prompt: record
        for record in case.after.elsewhere()
        if record.preserved is False or (record.preserved is None and record.says_new)
    }
    kinds = {True: "neighbourhood", False: "locality"}
    return tuple(
        Changed(kinds[isinstance(record, ScoredPrompt)], prompt, old.get(prompt), record.answer or "")
        for prompt, record in gone.items()
    )
