"""``job=build``: makes a model fit a list of facts, and verifies that it does.

Only what is new is solved; the edit is compiled from the whole list, so that it is the same whatever the list was
before; and model, adapter, edit and report take the places of the earlier ones as a whole (`jobs.build.folder`).
"""

import dataclasses
import hashlib
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from omegaconf import DictConfig

from corrigenda import Edit, Fact, KnowledgeBase, LanguageModel, WrongModelError
from corrigenda.data import write_facts
from corrigenda.data.requests import active_facts
from corrigenda.edits.weights import WeightEdit
from corrigenda.errors import SettingsError, UnsupportedModelError
from corrigenda.system.files import expanded, write_json, write_text
from corrigenda.knowledge.plan import Plan
from corrigenda.system.progress import counted, stage
from corrigenda.runs.folder import RunFolder
from corrigenda.settings.checked import checked
from editing.editor import require_targets
from editing.knowledge.how import BESIDE, How, how_named, how_of
from eval import EvalSettings
from eval.measure import depends_on
from eval.verification.page import page
from eval.verification.verify import verify
from eval.verification.report import report_of
from eval.verification.unedited import Unedited
from jobs.shared.base import choices, load_model, override_names, say
from jobs.shared.acceptance import AcceptSettings, judge, say_verdict
from jobs.build.folder import BuildFolder, wrong_weights
from jobs.build.plan import in_words
from jobs.shared.data import read_data
from jobs.shared.errors import RunFailedError, RunInterrupted
from jobs.shared.job import StoreJob
from jobs.shared.registry import register
from jobs.shared.settings import CACHE, check, instantiate, instantiate_editor

SOLVED_AT_ONCE = 1
"""So many facts are solved for before what was found is written down: each is solved for by itself anyway."""

MOST_UNUSED = 0.5
"""Where more of the vectors than this share is of no use any more, they are written anew."""


@dataclass(frozen=True)
@checked
class BuildSettings:
    """``job=build``: ``data=facts data.path=corrections.jsonl job.folder=build``.

    Attributes:
        folder: where the build goes, and what was solved is kept.
        how: None: folded into the weights as ``editor=`` says (emmet, memit, alphaedit, rome, with their settings);
            "attached": beside them; or the name of an editor, with its defaults unless ``editor=`` names it, too
            ("scoped": beside them behind a gate that knows the question).
        dry: true only says what would be done.
    """

    group: ClassVar[str] = "job"

    folder: str
    how: str | None = None
    dry: bool = False


@register(
    "build",
    BuildSettings,
    aim="build a list of facts into a model, and verify it",
    parts={"accept": AcceptSettings()},
    begins={"editor": "emmet"},
)
class Job(StoreJob):
    """Builds a list of facts into a folder."""

    def run(self, config: DictConfig) -> None:
        """Builds, or only says what would be done.

        Raises:
            RunFailedError: a rule of acceptance is broken.
            RunInterrupted: Ctrl-C was pressed.
            ValueError: a line of the list is damaged, or a fact cannot be solved for; or the list in the folder was
                made on other weights; or the folder is no build's.
            LockedError: another process is building there.
        """
        asked, accept = check(BuildSettings, config.job), check(AcceptSettings, config.job.accept)
        if config.data.on_error != "raise":
            raise ValueError(f"data.on_error={config.data.on_error}: a list is built whole or not at all; leave it out")
        facts, way, settings = tuple(read_data(config.data)), way_of(config), instantiate(config.eval)
        require_targets("job=build", active_facts(facts))
        folder = BuildFolder(asked.folder)
        folder.require_own(config.data.path)
        if asked.dry:
            _say_plan(folder, load_model(config), facts, way)
            return
        try:
            with folder.held():
                before = None if config.before in (None, CACHE) else expanded(config.before)
                build = Build(folder, load_model(config), facts, way, settings, accept, str(config.data.path), before)
                rules = build.run()
        except KeyboardInterrupt:
            raise RunInterrupted("what was solved and verified is kept; give the same command again") from None
        broken = [rule["said"] for rule in rules if not rule["passed"]]
        if broken:
            raise RunFailedError(
                f"the build in {folder.path} is not accepted: {'; '.join(broken)}; it is in place all the same, and "
                "its report.json says so (accepted: false)"
            )


def way_of(config: DictConfig) -> How:
    """How the list is put to use: as ``job.how`` says, or by the editor that ``editor=`` names, with its settings.

    An editor that ``job.how`` names has the settings that the command line gives, too, where it is the one that
    ``editor=`` chose; else its defaults.

    Raises:
        SettingsError: there is no such way; or the editor cannot keep a list; or the command line gives settings of
            another editor than the one that ``job.how`` names.
    """
    how = config.job.how
    if how is None or how == choices()["editor"]:
        return how_of(instantiate_editor(config.editor))
    if how in BESIDE:
        return how_named(how, instantiate_editor(config.editor))
    editor = how_named(how).solver.editor
    lost = [name for name in override_names() if name.partition(".")[0] == "editor"]
    if lost:
        raise SettingsError(
            f"job.how={how}: {lost[0]} on the command line is of another editor and would not count; give editor={how} "
            "with its own settings, and leave job.how out"
        )
    return how_of(dataclasses.replace(editor, seed=config.seed))


def _say_plan(folder: BuildFolder, lm: LanguageModel, facts: Sequence[Fact], way: How) -> Plan:
    """Says what a build will do; nothing is written."""
    before = folder.facts
    plan = Plan.between(before, facts)
    to_solve = active_facts(facts)
    if folder.base.is_file():
        with KnowledgeBase.open(folder.base, create=False) as kb:
            _require_same_weights(folder, kb, lm)
            to_solve = kb.unsolved(lm, way.solver.settings(lm), facts)
    for line in in_words(plan, before, to_solve):
        say(line)
    return plan


def _require_same_weights(folder: BuildFolder, kb: KnowledgeBase, lm: LanguageModel) -> None:
    """Refuses a list that was made on other weights (WrongModelError)."""
    last = folder.report or {}
    made_on = dict.fromkeys(sorted(kb.solved_on), "")
    if "fingerprint" in last:
        made_on = {last["fingerprint"]: last["model"]}
    if made_on and lm.fingerprint not in made_on:
        raise WrongModelError(wrong_weights(folder.path, made_on, lm.name, lm.fingerprint))


@dataclass(frozen=True)
class Build:
    """One build; the folder is held.

    What the unedited model does is kept in `before`; None: in the build's folder, of this list alone.
    """

    folder: BuildFolder
    lm: LanguageModel
    facts: Sequence[Fact]
    way: How
    settings: EvalSettings
    accept: AcceptSettings
    source: str
    before: Path | None = None

    def run(self) -> list[dict[str, Any]]:
        """Solves, compiles, verifies and writes; gives what became of the rules of acceptance."""
        seconds: dict[str, float] = {}
        plan, last = _say_plan(self.folder, self.lm, self.facts, self.way), self.folder.report
        with KnowledgeBase.open(self.folder.base) as kb:
            begin = time.perf_counter()
            solver = self.way.solver
            if kb.facts != tuple(self.facts):
                kb.replace(self.facts)
            solved = kb.solve(self.lm, solver, batch=SOLVED_AT_ONCE)
            kb.compact(MOST_UNUSED)
            seconds["solve"] = time.perf_counter() - begin
            begin = time.perf_counter()
            with stage(f"Compiling {counted(len(kb.active), 'fact')} by {self.way.name}"):
                edit = kb.compile(self.lm, self.way.compiler)
            seconds["compile"] = time.perf_counter() - begin
        begin = time.perf_counter()
        scratch = self._verification_folder(edit)
        unedited = Unedited(self.lm, self.settings, self.folder.before if self.before is None else self.before)
        verified = verify(self.lm, edit, active_facts(self.facts), self.settings, scratch, unedited)
        seconds["verify"] = time.perf_counter() - begin
        by_id = {fact.id: dict(said) for fact, said in zip(edit.origin.facts, edit.origin.report, strict=False)}
        said = [by_id.get(one.case.fact.id, {}) for one in verified]
        report = report_of(self.facts, verified, said, plan, last) | self._about(edit, solved, seconds)
        rules = report["rules"] = judge(self.accept, report)
        report["accepted"] = all(rule["passed"] for rule in rules)
        self._write(edit, report)
        shutil.rmtree(scratch.path, ignore_errors=True)
        if self.before is None:
            unedited.forget_others(active_facts(self.facts))
        self._say(report)
        return rules

    def _verification_folder(self, edit: Edit) -> RunFolder:
        """Where the facts that are verified are written down: by the edit, the facts and how they are asked."""
        measured = depends_on(self.lm, self.settings, "eval.verification.verify")
        with edit.applied(self.lm):
            asked = {
                "edit": self.lm.edits.content_hash(),
                "with": measured,
                "settings": asdict(self.settings),
                "facts": [fact.to_dict() for fact in active_facts(self.facts)],
            }
        name = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
        for other in self.folder.path.glob(".verification-*"):
            if other.name != f".verification-{name}":
                shutil.rmtree(other, ignore_errors=True)
        return RunFolder(self.folder.path / f".verification-{name}")

    def _about(self, edit: Edit, solved: int, seconds: Mapping[str, float]) -> dict[str, Any]:
        made_at = datetime.now().isoformat(timespec="seconds")
        return {
            "about": f"{self.source}, built into {self.lm.name} by {self.way.name}, {made_at.replace('T', ' ')}",
            "made": made_at,
            "model": self.lm.name,
            "fingerprint": self.lm.fingerprint,
            "how": self.way.name,
            "settings": json.loads(json.dumps(edit.origin.settings, default=str)),
            "source": self.source,
            "n_solved": solved,
            "seconds": dict(seconds),
        }

    def _write(self, edit: Edit, report: Mapping[str, Any]) -> None:
        def write(new: Path) -> None:
            edit.save(new / "edit")
            if isinstance(edit, WeightEdit) and edit.kind == "low_rank":
                edit.to_peft(new / "adapter")
            with suppress(TypeError, UnsupportedModelError):  # `_say` says so
                edit.to_gguf_adapter(new / "gguf", base=self.lm.name)
            if edit.in_weights:
                with edit.applied(self.lm):
                    self.lm.save_pretrained(new / "model")
            write_facts(new / "facts.jsonl", self.facts)
            write_json(new / "report.json", report)
            write_text(new / "report.html", page(report))

        with stage(f"Writing the build into {self.folder.path}"):
            self.folder.replace(write)

    def _say(self, report: Mapping[str, Any]) -> None:
        say_verdict(report)
        if not (self.folder.path / "adapter").exists():
            say("there is no adapter/: the edit is not of low rank")
        if not (self.folder.path / "gguf").exists():
            say("there is no gguf/: llama.cpp has no such edit (corrigenda export form=gguf-adapter says why)")
        if not (self.folder.path / "model").exists():
            say("there is no model/: the edit is not in the weights; edit/ has it")
        say(f"the report is {self.folder.path / 'report.html'}")
