"""What the terminal shows of a run of edits: a bar and a line a fact while it works, tables at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import rich.progress
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from corrigenda.system.progress import LINE_SECONDS, counted, line, now_and_then
from corrigenda.text.display import on_one_line, printable
from corrigenda.text.names import model_title
from eval import Case, EditRun, SequentialRun
from eval.protocols.curves import curve_table
from jobs.shared.base import console, wide_console


def print_run(config: DictConfig, run: EditRun, sequence: SequentialRun | None, summary: Mapping[str, Any]) -> None:
    """Prints a run's tables, what failed in it, and where its results are."""
    printer = Console()
    n_facts = counted(len(run.facts), "fact")
    title = f"{run.editor.name} on {model_title(run.lm.name)}, {run.facts.name}, {n_facts}, {config.mode}"
    if sequence is None:
        printer.print(run.evaluation.table(title))
    else:
        printer.print(run.evaluation.table(f"{title}: each right after its edit"))
        printer.print(sequence.retention.table(f"{title}: all after the last edit"))
        if (after := sequence.after_fine_tuning) is not None:
            printer.print(after.table(f"{title}: all after fine-tuning on unrelated text"))
        wide_console().print(curve_table(sequence.curve, f"{title}: all edits so far after T of them (%, nats)"))
    if summary.get("n_overwritten") or summary.get("n_repeated"):
        printer.print(
            f"{summary['n_overwritten']} facts were contradicted by later ones and {summary['n_repeated']} asked "
            f"for again; {'the' if sequence is None else 'after T edits the'} last request counts"
        )
    if "stopped" in summary:
        total = summary["stopped"]["n_facts_asked_for"]
        printer.print(f"ended by the collapse stop: {summary['stopped']['why']}; {total} were asked for", style="red")
    for case in run.evaluation.failures:  # texts as they are: what is in square brackets is no style
        said = f"failed: {case.fact.id}: {on_one_line(case.fact.statement)}: {case.error}"
        printer.print(Text(printable(said), style="red"), soft_wrap=True)
    if run.facts.skipped:
        printer.print(f"{len(run.facts.skipped)} bad records were skipped; summary.json lists them")
    seconds = summary["seconds_per_edit"]
    took = "" if seconds is None else f"{seconds:.1f} s an edit; "
    printer.print(Text(f"{took}results in {run.folder.path}"), soft_wrap=True)


class Progress:
    """A bar on a terminal, and a line a fact everywhere; without a terminal a line now and then between them, too."""

    def __init__(self, total: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = rich.progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("Editing", total=total)
        self._total = total
        self._last = time.monotonic()
        self._open = ExitStack()
        self.done = self._advanced = 0

    def __enter__(self) -> Progress:
        self._open.enter_context(self._bar)
        if not console.is_terminal:
            self._open.enter_context(now_and_then(self._still_at_it))
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def _still_at_it(self, seconds: float) -> None:
        if time.monotonic() - self._last >= LINE_SECONDS:
            left = seconds / self._advanced * (self._total - self.done) if self._advanced else None
            text = f"[{self.done}/{self._total}] at work for {seconds:.0f} s"
            line(text if left is None else f"{text}, about {left:.0f} s left")

    def advance(self, case: Case) -> None:
        """Writes a line on a finished case."""
        self.done += 1
        self._advanced += 1  # without what an earlier part of the run did
        self._last = time.monotonic()
        self._bar.update(self._task, completed=self.done)
        # A fact that was too long to be measured has no records.
        found = [part.scored("prompt")[:1] for part in (case.before, case.after) if part is not None]
        values = [record.p_new for records in found for record in records if record.p_new is not None]
        change = f"P(new) {values[0]:.3f} -> {values[1]:.3f}" if len(values) == 2 else ""
        asked = (
            f"{on_one_line(case.fact.statement)} {_target(case.fact.target_true)} -> {_target(case.fact.target_new)}"
        )
        text = f"[{self.done}/{self._total}] {asked}"
        took = "" if case.seconds is None else f"{case.seconds:.1f} s"
        said = f"{text}  {on_one_line(case.error, 200) or change}  {took}"
        self._bar.console.print(printable(said), markup=False, highlight=False, soft_wrap=True)


def _target(target: str | None) -> str:
    return "(none)" if target is None else on_one_line(target, 30)
