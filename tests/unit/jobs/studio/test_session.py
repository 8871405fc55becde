import logging
import threading
from pathlib import Path

import pytest
import studio_parts
import torch
from studio_parts import OTHER, SENTENCE, SUBJECT

from corrigenda import Edit, EditRefusedError
from corrigenda.system.progress import track
from jobs.studio import session as module
from jobs.studio.corrections import fact_of
from jobs.studio.session import BusyError, Session


@pytest.fixture
def session(tmp_path: Path) -> Session:
    session = studio_parts.session(tmp_path)
    session.corrections.put(fact_of(SENTENCE, SUBJECT, "Rome"))
    return session


def status(session: Session) -> list[str]:
    return [status for _, status, _ in session.rows()]


def weights(session: Session) -> list[torch.Tensor]:
    return [parameter.clone() for parameter in session.lm.model.parameters()]


def same(before: list[torch.Tensor], after: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_applied_tried_and_undone_to_the_bit(session: Session) -> None:
    before = weights(session)
    session.try_out()
    assert status(session) == ["not held"]
    session.apply("finetune")
    [(_, held, said)] = session.rows()
    assert held == "held"
    assert said.startswith("Rome")
    assert session.state == "tiny-llama with 1 correction by finetune"
    assert not same(before, weights(session))
    session.undo()
    assert status(session) == ["not tried"]
    assert session.state == "tiny-llama as it was loaded"
    assert same(before, weights(session))


def test_the_same_again_is_not_made_again(session: Session) -> None:
    session.apply("finetune")
    first = session.edit
    session.undo()
    session.apply("finetune")
    assert session.edit is first
    session.corrections.put(fact_of(*OTHER))
    assert "the list is another by now" in session.state
    assert status(session) == ["held", "not tried"]
    session.apply("finetune")
    assert session.edit is not first
    assert len(session.lm.edits) == 1
    assert session.state == "tiny-llama with 2 corrections by finetune"


def test_a_superseded_correction_is_said_to_be_one(session: Session) -> None:
    session.corrections.put(fact_of(SENTENCE, SUBJECT, "Paris"))
    session.apply("finetune")
    assert status(session) == ["superseded", "held"]
    assert len(session.edit.origin.facts) == 1


def test_an_editor_that_refuses_leaves_what_was_applied(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    session.apply("finetune")
    first = session.edit
    session.corrections.put(fact_of(*OTHER))

    def refuse(*_: object) -> Edit:
        raise EditRefusedError("it will not")

    monkeypatch.setattr(type(session.editors["in_context"]), "edit", refuse)
    with pytest.raises(EditRefusedError):
        session.apply("in_context")
    assert session.edit is first
    assert list(session.lm.edits) == [first]
    session.undo()


def test_before_and_after_side_by_side(session: Session) -> None:
    before, after = session.ask(SENTENCE)
    assert after is None
    session.apply("finetune")
    again, after = session.ask(f"{SENTENCE} ")
    assert again == before
    assert after is not None
    assert after.tokens[0][0] == "Rome"
    assert after.tokens[0][1] > dict(before.tokens).get("Rome", 0)
    assert after.text.startswith("Rome")
    chances = [chance for _, chance in after.tokens]
    assert len(chances) == 8
    assert chances == sorted(chances, reverse=True)
    with pytest.raises(ValueError, match="the question is empty"):
        session.ask(" ")


def test_one_thing_at_a_time(session: Session) -> None:
    inside, end = threading.Event(), threading.Event()

    def work() -> None:
        with session.at_work("Waiting"):
            for _ in track([1, 2], "Steps"):
                inside.set()
                end.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert inside.wait(10)
        with pytest.raises(BusyError, match="Waiting is under way; press again later"):
            session.apply("finetune")
        assert session.doing is not None
        assert (session.doing.share, session.doing.step) == (0, "Steps")
    finally:
        end.set()
        thread.join()
    assert session.doing is None
    session.apply("finetune")


def test_apply_waits_until_the_editor_is_ready(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, end, order = threading.Event(), threading.Event(), []

    def slow(*_: object) -> None:
        begun.set()
        end.wait(10)
        order.append("ready")
        raise ValueError("the first edit says so")

    monkeypatch.setattr(module, "prepare", slow)
    getting_ready = threading.Thread(target=session.prepare, args=("finetune",))
    getting_ready.start()
    assert begun.wait(10)
    applying = threading.Thread(target=lambda: (session.apply("finetune"), order.append("applied")))
    applying.start()
    end.set()
    for thread in (getting_ready, applying):
        thread.join(30)
    assert order == ["ready", "applied"]
    assert status(session) == ["held"]


def test_warnings_become_notes(session: Session) -> None:
    with session.at_work("Warning"):
        logging.getLogger("corrigenda").warning("mind %s", "the gap")
    assert session.notes == ("mind the gap",)
    session.try_out()
    assert session.notes == ()


def test_pictures_pages_and_reports(session: Session) -> None:
    [fact] = session.corrections.facts
    with pytest.raises(ValueError, match="nothing is applied; apply the corrections first"):
        session.report()
    picture = session.trace(fact, "block")
    assert picture.read_bytes().startswith(b"\x89PNG")
    session.apply("finetune")
    assert session.trace(fact, "block") != picture
    page = session.explain(fact, "in_context")
    assert "by finetune" in page.read_text()
    report = session.report()
    assert "1 of 1 facts hold" in report.read_text()
    assert session.taken == [(report, "1 of 1 corrections hold")]
    assert status(session) == ["held"]
    assert len(session.lm.edits) == 1
    assert {path.parent for path in (picture, page, report)} == {session.folder}


def test_nothing_leaves_the_folder(session: Session) -> None:
    assert session.new("../../a/b\n.png").parent == session.folder


def test_an_empty_list_is_refused(session: Session) -> None:
    session.corrections.remove(session.corrections.facts[0].id)
    with pytest.raises(ValueError, match="there is no correction in the list yet"):
        session.apply("finetune")
