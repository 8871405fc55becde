import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
from hydra.errors import MissingConfigException

from corrigenda import EditRefusedError, Fact, LanguageModel
from corrigenda.data import FactSet
from corrigenda.runs.folder import RunFolder
from corrigenda.runs.records import count_records, records_in
from eval import EditRun, EvalSettings, SequentialSettings, run_batch, run_sequential, run_single
from eval.leaderboard import leaderboard, write_leaderboard
from eval.protocols.journal import lines_of
from eval.protocols.settings import Regime
from jobs.shared import errors
from jobs.shared.errors import EXPECTED, RunFailedError, RunInterrupted, describe_error


def test_errors_that_the_program_made_are_not_told_in_a_line() -> None:
    assert describe_error(ZeroDivisionError("a bug"), []) is None
    assert describe_error(KeyError("a bug"), []) is None
    assert describe_error(RunInterrupted("go on with resume=x"), []) == ("interrupted; go on with resume=x", 130)
    assert describe_error(KeyboardInterrupt(), []) == ("interrupted", 130)
    assert describe_error(OSError(28, "No space left on device", "cases.jsonl"), []) == (
        "cases.jsonl: No space left on device (OSError; HYDRA_FULL_ERROR=1 shows where)",
        1,
    )
    for kind in (ValueError, MemoryError, RunFailedError, ConnectionError):
        assert issubclass(kind, EXPECTED)
        assert describe_error(kind("one\ntwo"), []) == (f"one two ({kind.__name__}; HYDRA_FULL_ERROR=1 shows where)", 1)


@pytest.mark.parametrize(("choice", "extra"), [("launcher/submitit_slurm", "submitit"), ("sweeper/optuna", "optuna")])
def test_a_launcher_that_is_not_installed_names_its_extra(choice: str, extra: str) -> None:
    missing = MissingConfigException("not there", f"hydra/{choice}", ["basic"])
    [said, _] = describe_error(missing, []) or ("", 0)
    assert said.endswith(
        f"{choice.replace('/', '=')} is of a package that is not installed: pip install 'corrigenda[{extra}]'"
    )


@pytest.mark.parametrize("path", ["/home/me/.cache", "/home/me/.cache/corrigenda/before/x"])
def test_a_cache_that_cannot_be_written_is_told_how_it_is_moved(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRIGENDA_CACHE", "/home/me/.cache/corrigenda")
    [said, _] = describe_error(PermissionError(13, "Permission denied", path), []) or ("", 0)
    assert said.startswith(f"{path}: Permission denied; this is of the cache: CORRIGENDA_CACHE=FOLDER in the")


@pytest.mark.parametrize("folder", ["checkout", "venv/lib/python3.12/site-packages"])
def test_an_installed_program_tells_the_same_errors_in_a_line(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its packages lie beside the libraries then, whose errors of these kinds are mistakes."""
    root = tmp_path / folder
    monkeypatch.setattr(errors, "ROOT", root)

    def raised_in(file: str) -> IndexError:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("raise IndexError('layer 99: the model has 30 layers')\n", encoding="utf-8")
        with pytest.raises(IndexError) as caught:
            exec(compile((root / file).read_text(encoding="utf-8"), root / file, "exec"))
        return caught.value

    assert describe_error(raised_in("corrigenda/models/architecture.py"), []) == (
        "layer 99: the model has 30 layers",
        1,
    )
    assert describe_error(raised_in("torch/nn/modules/container.py"), []) is None
    assert describe_error(raised_in(".venv/lib/python3.12/site-packages/corrigenda.py"), []) is None


FACTS = FactSet(
    "five",
    tuple(Fact(subject, "the city of {} is", "Rome", "Paris", id=subject) for subject in ("red", "blue", "green")),
)
SMALL = EvalSettings(generate=False, perplexity_windows=0)


class Moody:
    """Raises what it is told to, at the subjects that it is told of."""

    name = "moody"

    def __init__(self, error: BaseException | None = None, at: tuple[str, ...] = ()) -> None:
        self.error, self.at = error, at

    def edit(self, lm: LanguageModel, facts: Any) -> Any:
        from editing import InContext

        if self.error is not None and {fact.subject for fact in facts} & set(self.at):
            raise self.error
        return InContext().edit(lm, facts)


lm = pytest.fixture(tiny.llama, scope="module")


def sequential(run: EditRun, regime: Regime = "auto") -> None:
    run_sequential(run, SequentialSettings(checkpoints=(1, 2), every=1, regime=regime))


PROTOCOLS: dict[str, Callable[[EditRun], None]] = {"single": run_single, "batch": run_batch, "sequential": sequential}


def scored(folder: Path, of: str = "cases") -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records_in(folder, of)]


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), MemoryError(), OSError(5, "x"), ValueError("a\nb")])
@pytest.mark.parametrize("mode", PROTOCOLS)
def test_a_crash_is_noted_and_tried_again(lm: LanguageModel, tmp_path: Path, mode: str, error: Exception) -> None:
    go = PROTOCOLS[mode]
    go(EditRun(lm, FACTS, Moody(), SMALL, RunFolder(tmp_path / "calm")))
    crashed = EditRun(lm, FACTS, Moody(error, ("blue",)), SMALL, RunFolder(tmp_path / "run"))
    go(crashed)
    crashes = crashed.evaluation.crashes
    assert len(crashes) == (3 if mode == "batch" else 1)
    assert all(case.error == f"crashed: {error!r}" for case in crashes)
    assert not lm.edits
    go(EditRun(lm, FACTS, Moody(), SMALL, RunFolder(tmp_path / "run")))
    for of in ("cases", "retention"):
        assert scored(tmp_path / "run", of) == scored(tmp_path / "calm", of)
    assert count_records(tmp_path / "run") == 3
    RunFolder(tmp_path / "run").finish({})
    assert count_records(tmp_path / "run") == 3


@pytest.mark.parametrize("mode", PROTOCOLS)
def test_an_editor_that_gives_no_edit_has_crashed(lm: LanguageModel, tmp_path: Path, mode: str) -> None:
    forgetful: Any = SimpleNamespace(name="forgetful", edit=lambda lm, facts: None)
    run = EditRun(lm, FACTS, forgetful, SMALL, RunFolder(tmp_path))
    PROTOCOLS[mode](run)
    assert len(run.evaluation.crashes) == 3
    assert "an editor gives an Edit, and forgetful gave NoneType" in run.evaluation.crashes[0].error


@pytest.mark.parametrize("mode", PROTOCOLS)
def test_a_refusal_is_final_and_no_crash(lm: LanguageModel, tmp_path: Path, mode: str) -> None:
    run = EditRun(lm, FACTS, Moody(EditRefusedError("no"), ("blue",)), SMALL, RunFolder(tmp_path))
    PROTOCOLS[mode](run)
    assert run.evaluation.crashes == []
    assert {case.error for case in run.evaluation.failures} == {"refused: no"}
    again = EditRun(lm, FACTS, Moody(), SMALL, RunFolder(tmp_path))
    PROTOCOLS[mode](again)
    assert len(again.evaluation.failures) == len(run.evaluation.failures)


@pytest.mark.parametrize("mode", PROTOCOLS)
def test_ctrl_c_is_not_swallowed(lm: LanguageModel, tmp_path: Path, mode: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        PROTOCOLS[mode](EditRun(lm, FACTS, Moody(KeyboardInterrupt(), ("blue",)), SMALL, RunFolder(tmp_path)))
    assert not lm.edits


DAMAGE: dict[str, tuple[str, str, str]] = {
    "identity-cut": ("identity.json", '{"model_finger', "identity.json: damaged"),
    "identity-list": ("identity.json", "[1]", "identity.json: damaged (holds list"),
    "identity-deep": ("identity.json", "[" * 100_000, "identity.json: damaged"),
    "identity-other": ("identity.json", '{"model_fingerprint": "x"}', "begun with another model_fingerprint"),
}
"""What is done to a file of a sequence that was cut short, and what going on with it says."""


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_files_of_a_run(lm: LanguageModel, tmp_path: Path, case: str) -> None:
    name, text, expected = DAMAGE[case]
    sequential(EditRun(lm, FACTS, Moody(), SMALL, RunFolder(tmp_path)))
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=r"damaged|begun with") as caught:
        sequential(EditRun(lm, FACTS, Moody(), SMALL, RunFolder(tmp_path)))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:.*damaged")
@pytest.mark.parametrize("mode", ["batch", "sequential", "together"])
@pytest.mark.parametrize("name", ["cases.jsonl", "journal.jsonl"])
def test_what_is_missing_in_a_run_is_done_again(lm: LanguageModel, tmp_path: Path, mode: str, name: str) -> None:
    calm, folder = tmp_path / "calm", tmp_path / "run"
    go = partial(sequential, regime="together") if mode == "together" else PROTOCOLS[mode]
    go(EditRun(lm, FACTS, Moody(), SMALL, RunFolder(calm)))
    content = (calm / name).read_bytes()
    lines = content.splitlines(keepends=True)
    one_by_one = [content.replace(line, line.replace(b":", b"-", 1)) for line in lines]
    texts = (b"", b'{"done": 2, "edi', b'{"id": \n', b"[1]\n", content[:-9], b"".join(lines[1:-4]), *one_by_one)
    for text in texts:
        shutil.copytree(calm, folder)
        (folder / name).write_bytes(text)
        go(EditRun(lm, FACTS, Moody(), SMALL, RunFolder(folder)))
        for of in ("cases", "retention"):
            found, expected = (sorted(scored(place, of), key=str) for place in (folder, calm))
            assert found == expected
        if mode != "batch":
            assert {line["t"] for line in lines_of(folder, "point")} == {1, 2, 3}
        shutil.rmtree(folder)


def test_a_model_is_not_written_onto_a_file(lm: LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "model").write_text("x")
    with pytest.raises(FileExistsError, match="model is a file; name a folder"):
        lm.save_pretrained(tmp_path / "model")


def test_a_leaderboard_stays_in_its_folder(tmp_path: Path) -> None:
    for name in ("../x", "a/b", "", "..", "."):
        with pytest.raises(ValueError, match=r"job\.file="):
            write_leaderboard(leaderboard([]), tmp_path, name)
    assert not list(tmp_path.iterdir())
