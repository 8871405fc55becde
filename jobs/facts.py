"""``job=facts``: lists and searches the facts of a list that was built."""

from dataclasses import dataclass
from typing import ClassVar

from omegaconf import DictConfig
from rich.table import Table
from rich.text import Text

from corrigenda import KnowledgeBase
from corrigenda.settings.checked import checked
from corrigenda.text.display import on_one_line, printable
from jobs.build.folder import BuildFolder
from jobs.shared.base import say, wide_console
from jobs.shared.job import StoreJob
from jobs.shared.registry import register
from jobs.shared.settings import check


@dataclass(frozen=True)
@checked
class FactsSettings:
    """``job=facts``.

    Attributes:
        folder: that of ``job=build``.
        subject: only facts of this subject, without regard to case.
        text: only facts with this text in the statement, an object, an alias or a paraphrase.
        id: only the fact with this id.
    """

    group: ClassVar[str] = "job"

    folder: str
    subject: str | None = None
    text: str | None = None
    id: str | None = None


@register("facts", FactsSettings, aim="list and search the facts of a list that was built")
class Job(StoreJob):
    """Lists the facts of a folder that ``job=build`` made."""

    def run(self, config: DictConfig) -> None:
        """Prints the table.

        Raises:
            FileNotFoundError: there is no list in the folder.
            LookupError: no fact has the id.
        """
        asked = check(FactsSettings, config.job)
        folder = BuildFolder(asked.folder)
        if not folder.base.is_file():
            raise FileNotFoundError(
                f"job.folder={folder.path}: there is no list ({folder.base.name}); job=build makes one"
            )
        with KnowledgeBase.open(folder.base, create=False) as kb:
            found, active = kb.find(asked.subject, asked.text), {fact.id for fact in kb.active}
            total = len(kb)
        if asked.id is not None:
            found = tuple(fact for fact in found if fact.id == asked.id)
            if not found:
                raise LookupError(f"job.id={asked.id}: no fact of {folder.path} has this id; leave it out to list all")
        rows = {row["id"]: row for row in (folder.report or {}).get("facts", ())}
        table = Table(title=f"{len(found)} of {total} facts in {folder.path}", title_justify="left")
        for name in ("id", "statement", "new object", "old object", "state", "holds", "says now"):
            table.add_column(name, overflow="fold")
        for fact in found:
            row = rows.get(fact.id, {})
            built = row.get("statement") == fact.statement and row.get("target_new") == fact.target_new
            state = "in force" if fact.id in active else f"{row.get('state', 'left out')} by {row.get('by', 'another')}"
            holds = {True: Text("yes", "green"), False: Text("no", "red")}.get(row.get("holds"), Text(""))
            table.add_row(
                *(
                    Text(printable(part))
                    for part in (fact.id, fact.statement, fact.target_new or "", fact.target_true or "")
                ),
                Text(state if built else f"{state}, not built yet"),
                holds if built else Text(""),
                Text(printable(on_one_line(row.get("now") or "")) if built else ""),
            )
        wide_console().print(table)
        if not found:
            say("nothing was found; job.subject= is a whole subject, job.text= a part of any text")
