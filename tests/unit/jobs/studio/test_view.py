import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import studio_parts
from studio_parts import SENTENCE, SUBJECT

from jobs.export import ExportSettings
from jobs.studio.corrections import fact_of
from jobs.studio.session import Session

testing = pytest.importorskip("nicegui.testing", reason="needs NiceGUI (pip install 'corrigenda[studio]')")

User = Any
PATIENCE = 600
"""Tenths of a second that a simulated user waits."""


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    return studio_parts.session(tmp_path)


def played(session: Session, play: Callable[[User], Awaitable[None]]) -> None:
    from jobs.studio.view import View

    async def run() -> None:
        async with testing.user_simulation(root=lambda: View(session, {"finetune": "one fact"})) as user:
            await user.open("/")
            await play(user)

    asyncio.run(run())


def written(user: User, *values: str) -> None:
    for label, value in zip(
        ("Sentence, up to the answer", "Whom or what it is about", "New answer"), values, strict=True
    ):
        [field] = user.find(label).elements
        field.value = value


def rows(user: User) -> list[dict[str, str]]:
    from nicegui import ui

    [table] = user.find(ui.table).elements
    return table.rows


def test_a_correction_is_written_applied_asked_and_undone(session: Session) -> None:
    async def play(user: User) -> None:
        await user.should_see("Nothing is in the list yet")
        await user.should_see("tiny-llama as it was loaded")
        written(user, SENTENCE, SUBJECT, "Rome")
        user.find("Add").click()
        await user.should_see(f"{SENTENCE} Rome", retries=PATIENCE)
        assert [row["status"] for row in rows(user)] == ["not tried"]
        user.find("Apply").click()
        await user.should_see("tiny-llama with 1 correction by finetune", retries=PATIENCE)
        assert [row["status"] for row in rows(user)] == ["held"]
        user.find("Ask").click()
        [question] = user.find("Question, or the beginning of a sentence").elements
        question.value = SENTENCE
        user.find(kind=type(next(iter(user.find("Undo").elements))), content="Ask").click()
        await user.should_see("After", retries=PATIENCE)
        user.find("Undo").click()
        await user.should_see("tiny-llama as it was loaded", retries=PATIENCE)

    played(session, play)
    assert [fact.target_new for fact in session.corrections.facts] == ["Rome"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (("", "", ""), "the sentence is empty; write it down"),
        ((SENTENCE, "Big Ben", "Rome"), "the sentence does not hold 'Big Ben'"),
        ((SENTENCE, SUBJECT, ""), "the new answer is empty; write it down"),
    ],
)
def test_bad_input_is_a_line(session: Session, values: tuple[str, ...], said: str) -> None:
    async def play(user: User) -> None:
        written(user, *values)
        user.find("Add").click()
        await user.should_see(said, retries=PATIENCE)

    played(session, play)
    assert session.corrections.facts == ()


def test_a_change_that_another_tab_was_quicker_with(session: Session) -> None:
    from nicegui import ui

    session.corrections.put(fact_of(SENTENCE, SUBJECT, "Rome"))

    async def play(user: User) -> None:
        await user.should_see(f"{SENTENCE} Rome", retries=PATIENCE)
        [table] = user.find(ui.table).elements
        table.selected = table.rows[:1]
        for answer in ("Oslo", "Bern"):
            user.find("Change").click()
            await user.should_see("Save the change", retries=PATIENCE)
            [field] = user.find("New answer").elements
            field.value = answer
            if answer == "Bern":
                session.corrections.put(fact_of(SENTENCE, SUBJECT, "Paris"), session.corrections.facts[0])
            user.find("Save the change").click()
            await user.should_see("Oslo" if answer == "Oslo" else "was changed meanwhile", retries=PATIENCE)

    played(session, play)
    assert [fact.target_new for fact in session.corrections.facts] == ["Paris"]


def test_a_press_while_something_is_under_way(session: Session) -> None:
    async def play(user: User) -> None:
        with session.at_work("Tracing Big Ben"):
            await user.should_see("Tracing Big Ben (", retries=PATIENCE)
            user.find("Apply").click()
            await user.should_see("Tracing Big Ben is under way; press again later", retries=PATIENCE)

    played(session, play)


def test_a_list_that_another_program_damaged(session: Session) -> None:
    async def play(user: User) -> None:
        session.corrections.path.write_text("half a li")
        await user.should_see("corrections.jsonl, line 1", retries=PATIENCE)
        session.corrections.path.write_text('{"subject": "Big Ben", "prompt": "{} is in", "target_new": "Rome"}\n')
        await user.should_see("Big Ben is in Rome", retries=PATIENCE)

    played(session, play)


def test_all_forms_of_the_export_are_offered(session: Session) -> None:
    async def play(user: User) -> None:
        user.find("Take with you").click()
        for form in (*get_args(get_type_hints(ExportSettings)["form"]), "report"):
            await user.should_see(form)
        user.find("report").click()
        await user.should_see("nothing is applied; apply the corrections first", retries=PATIENCE)

    played(session, play)
