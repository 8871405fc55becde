"""The page of a studio: each browser tab has a `View` of the one `Session`."""

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from nicegui import run, ui
from nicegui.events import UploadEventArguments

from corrigenda import Fact
from corrigenda.settings.documented import meanings
from corrigenda.text.display import on_one_line, printable
from jobs.export import ExportSettings
from jobs.shared.errors import describe_error
from jobs.studio.corrections import fact_of, shown
from jobs.studio.session import Said, Session

logger = logging.getLogger(__name__)

R = TypeVar("R")

FORMS: tuple[str, ...] = get_args(get_type_hints(ExportSettings)["form"])
"""The forms of ``job=export``."""
SECONDS = 0.3
"""How often a tab looks at what there is."""
LARGEST = 2**25
"""Bytes of a file that is imported, at most."""
FIELDS = {
    "sentence": "Sentence, up to the answer",
    "subject": "Whom or what it is about",
    "target_new": "New answer",
    "target_true": "Answer so far",
    "paraphrases": "Other ways to ask, one a line",
    "neighbourhood": "Questions about others, whose answers must stay, one a line",
}
EXAMPLE = {
    "sentence": "The Eiffel Tower is located in the city of",
    "subject": "The Eiffel Tower",
    "target_new": "Rome",
}
STATUS = {"held": "green-9", "not held": "red-9", "not tried": "grey-8", "superseded": "grey-8"}
STYLE = """
.q-page-container > .nicegui-content, .q-tab-panel { max-width: 1100px; margin: auto; width: 100%; }
.q-table td { white-space: normal; }
.token { min-width: 7em; text-align: right; font-family: monospace; white-space: pre; }
.side { flex: 1 1 300px; }
iframe { width: 100%; height: 80vh; border: 0; }
img { width: 100%; max-width: 800px; }
.body--dark :is(.q-btn--flat, .q-btn--outline) { --q-primary: #90caf9; }
@media (max-width: 600px) { .q-table :is(td, th) { padding: 4px 6px; } .q-tab-panel { padding: 8px 0; } }
"""


class View:
    """One tab; `aims` says by name what each editor is for."""

    def __init__(self, session: Session, aims: dict[str, str]) -> None:
        self.session = session
        self.place: Fact | None = None
        self.seen: object = None
        ui.add_css(STYLE)
        ui.colors(primary="#2b7bba")
        with ui.header(), ui.row().style("align-items: baseline"):
            ui.label("Corrigenda").classes("text-h6")
            self.state = ui.label().props("role=status")
        with ui.row().classes("items-center full-width"):
            names = {name: f"{name}: {aims[name]}" if aims.get(name) else name for name in session.editors}
            self.editor = ui.select(names, value=next(iter(names)), label="Editor").classes("side")
            ui.button("Apply", on_click=lambda: self.press(session.apply, self.editor.value))
            ui.button("Undo", on_click=lambda: self.press(session.undo)).props("outline")
        self.progress = ui.linear_progress(0, show_value=False).props('aria-label="progress"')
        self.doing = ui.label().props("role=status")
        self.notes = ui.label().classes("text-caption").style("white-space: pre-line")
        with ui.tabs().classes("full-width").props('align="left" outside-arrows mobile-arrows') as tabs:
            parts = {
                "Corrections": self._list,
                "Ask": self._ask,
                "Where it lies": self._where,
                "Take with you": self._take,
            }
            named = {name: ui.tab(name) for name in parts}
        with ui.tab_panels(tabs, value=named["Corrections"]).classes("full-width"):
            for name, build in parts.items():
                with ui.tab_panel(named[name]):
                    build()
        self.poll()
        ui.timer(SECONDS, self.poll)

    async def press(self, function: Callable[..., R], *arguments: Any) -> R | None:
        """Does a piece of work in a thread of its own; None, and a line for the reader, where it fails."""
        try:
            return await run.io_bound(function, *arguments)
        except Exception as error:
            said = describe_error(error, ())
            if said is None:
                logger.exception("in the studio")
            line = "this is a mistake in the program; the terminal shows where" if said is None else said[0]
            ui.notify(line, type="negative", position="top", multi_line=True, timeout=15_000, close_button="Close")
            return None

    def poll(self) -> None:
        """Shows what is under way; and all that changed, in whichever tab it was done."""
        doing = self.session.doing
        self.progress.visible = self.doing.visible = doing is not None
        if doing is not None:
            self.doing.text = str(doing)
            self.progress.value = doing.share or 0
            self.progress.props("indeterminate" if doing.share is None else "", remove="indeterminate")
        seen = (self.session.version, self.session.corrections.seen)
        if seen != self.seen:
            self.seen = seen
            self._refresh()

    def _refresh(self) -> None:
        try:
            rows, self.state.text, problem = self.session.rows(), self.session.state, ""
        except (ValueError, OSError) as error:  # another program wrote what is no list
            rows, problem = [], str(error)
        self.table.rows = [
            {"id": fact.id, "claim": fact.claim, "status": status, "said": printable(said)}
            for fact, status, said in rows
        ]
        self.table.update()
        self.empty.visible = not rows
        self.notes.text = "\n".join((*filter(None, (problem,)), *self.session.notes))
        self.back.visible = bool(self.session.corrections.removed)
        choices = {fact.id: on_one_line(fact.claim) for fact, _, _ in rows}
        kept = self.which.value if self.which.value in choices else next(iter(choices), None)
        self.which.set_options(choices, value=kept)
        self.question.set_autocomplete([fact.statement for fact, _, _ in rows])
        self.taken.clear()
        with self.taken:
            for path, said in self.session.taken:
                ui.label(said or str(path)).style("white-space: pre-line; overflow-wrap: anywhere")
                for file in [path] if path.is_file() else sorted(path.glob("*")):
                    ui.link(str(file), self.address(file), new_tab=True)

    # -- the views

    def _list(self) -> None:
        with ui.row().classes("full-width"):
            self.fields = {name: ui.input(FIELDS[name]).classes("side") for name in EXAMPLE}
        for field in self.fields.values():
            field.on("keydown.enter", self._put)
        with ui.expansion("More about it").classes("full-width"):
            self.fields["target_true"] = ui.input(FIELDS["target_true"]).classes("full-width")
            for name in ("paraphrases", "neighbourhood"):
                self.fields[name] = ui.textarea(FIELDS[name]).classes("full-width").props("autogrow")
        upload = ui.upload(on_upload=self._import, auto_upload=True, max_file_size=LARGEST).classes("hidden")
        with ui.row():
            self.put = ui.button("Add", on_click=self._put)
            ui.button("Example", on_click=lambda: self._fill(EXAMPLE)).props("flat")
            ui.button("Clear", on_click=lambda: self._fill({})).props("flat")
            pick = ui.button("Import a file").props("flat")
            pick.on("click", js_handler=f"() => getElement({upload.id}).$refs.qRef.pickFiles()")
        self.empty = ui.label("Nothing is in the list yet. Add a correction, or press Example, then Add, then Apply.")
        columns = [
            {"name": name, "label": label, "field": name, "align": "left", "sortable": True}
            for name, label in (("claim", "Correction"), ("status", "Status"), ("said", "The model says"))
        ]
        self.table = ui.table(rows=[], columns=columns, selection="single", pagination=25).classes("full-width")
        colour = " : ".join(f"props.value == '{name}' ? '{colour}'" for name, colour in STATUS.items())
        badge = f"""<q-td :props="props"><q-badge :color="{colour} : 'grey-8'" :label="props.value" /></q-td>"""
        self.table.add_slot("body-cell-status", badge)
        with ui.row():
            ui.button("Change", on_click=self._change).props("flat")
            ui.button("Remove", on_click=self._remove).props("flat")
            self.back = ui.button("Put back", on_click=lambda: self.press(self.session.corrections.put_back))
            self.back.props("flat")
            ui.button("Try all", on_click=lambda: self.press(self.session.try_out)).props("flat")

    def _fill(self, values: dict[str, str], place: Fact | None = None) -> None:
        self.place = place
        self.put.text = "Add" if place is None else "Save the change"
        for name, field in self.fields.items():
            field.value = values.get(name, "")

    async def _put(self) -> None:
        def put() -> bool:
            self.session.corrections.put(
                fact_of(**{name: field.value for name, field in self.fields.items()}), self.place
            )
            return True

        if await self.press(put):
            self._fill({})

    def _chosen(self) -> Fact | None:
        ids = {row["id"] for row in self.table.selected}
        found = next((fact for fact in self.session.corrections.facts if fact.id in ids), None)
        if found is None:
            ui.notify("Choose a correction in the table first.", position="top")
        return found

    def _change(self) -> None:
        if (fact := self._chosen()) is not None:
            self._fill(shown(fact), fact)

    async def _remove(self) -> None:
        if (fact := self._chosen()) is not None:
            await self.press(self.session.corrections.remove, fact.id)
            self.table.selected = []

    async def _import(self, event: UploadEventArguments) -> None:
        event.sender.reset()
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / Path(event.file.name).name
            await event.file.save(path)
            if said := await self.press(self.session.corrections.take_in, path):
                ui.notify(said, position="top")

    def _ask(self) -> None:
        async def ask() -> None:
            found = await self.press(self.session.ask, self.question.value)
            if found is not None:
                answers.clear()
                with answers:
                    for title, said in zip(("Before", "After"), found, strict=True):
                        with ui.card().classes("side"):
                            _answer(title, said)

        with ui.row().classes("items-center full-width"):
            self.question = ui.input("Question, or the beginning of a sentence", autocomplete=[]).classes("col")
            self.question.on("keydown.enter", ask)
            ui.button("Ask", on_click=ask)
        answers = ui.row().classes("full-width items-stretch")

    def _where(self) -> None:
        async def show(function: Callable[..., Path], *arguments: Any) -> None:
            fact = next((fact for fact in self.session.corrections.facts if fact.id == self.which.value), None)
            if fact is None:
                ui.notify("Add a correction first.", position="top")
            elif (path := await self.press(function, fact, *arguments)) is not None:
                shown.clear()
                with shown:
                    ui.link("Open it in a tab of its own", self.address(path), new_tab=True)
                    if path.suffix == ".html":
                        ui.element("iframe").props(f'src="{self.address(path)}" title="The page of the fact"')
                    else:
                        alt = f"Causal trace: which states carry the answer to {on_one_line(fact.statement)!r}"
                        ui.element("img").props(f'src="{self.address(path)}" alt="{site.value} trace"')
                        ui.label(alt).classes("text-caption")

        with ui.row().classes("items-center full-width"):
            self.which = ui.select({}, label="Correction").classes("side")
            site = ui.select(
                {"ffn": "feed-forward layers", "attention": "attention", "block": "whole layers"}, value="ffn"
            )
            site.props('label="What is put back"')
            ui.button("Trace", on_click=lambda: show(self.session.trace, site.value))
            ui.button("Page of the fact", on_click=lambda: show(self.session.explain, self.editor.value)).props(
                "outline"
            )
        shown = ui.column().classes("full-width")

    def _take(self) -> None:
        forms = meanings(ExportSettings)["form"].replace("``", "").rstrip(".")
        ui.label(f"{forms}. All are of what is applied now.")
        with ui.row():
            for form in FORMS:
                ui.button(form, on_click=lambda form=form: self.press(self.session.take, form)).props("no-caps outline")
            ui.button("report", on_click=lambda: self.press(self.session.report)).props("no-caps outline")
        ui.label("The list is a file of its own. To build and check it without this page:")
        ui.code(
            f"corrigenda build data=facts data.path={self.session.corrections.path} job.folder=build", language="sh"
        )
        self.taken = ui.column().classes("full-width")

    def address(self, path: Path) -> str:
        """Where a file of the session's folder is served."""
        return f"/files/{path.relative_to(self.session.folder).as_posix()}"


def _answer(title: str, said: Said | None) -> None:
    ui.label(title).classes("text-h6")
    if said is None:
        ui.label("Nothing is applied.")
        return
    ui.label(printable(said.text.strip(), lines=True)).style("white-space: pre-line; overflow-wrap: anywhere")
    for token, probability in said.tokens:
        with ui.row().classes("items-center no-wrap full-width"):
            ui.label(f'"{printable(token)}"').classes("token")
            ui.linear_progress(probability, show_value=False, size="1em").classes("col").props("aria-hidden=true")
            ui.label(f"{probability:.1%}").style("min-width: 4em")
