"""``job=verify``: asks a running server whether a list of corrections holds, and gives the verdict of a build.

Answers are written down as they come; a verification that is done asks anew the next time: another model may run there.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.table import Table
from rich.text import Text

from corrigenda import Fact
from corrigenda.data.requests import active_facts
from corrigenda.errors import LockedError, SettingsError
from corrigenda.knowledge.plan import Plan
from corrigenda.runs.folder import RunFolder, read_object
from corrigenda.runs.locks import locked
from corrigenda.system.files import write_json, write_text
from corrigenda.system.progress import counted, stage
from corrigenda.text.display import on_one_line, printable
from editing.editor import require_targets
from eval.verification.page import page
from eval.verification.report import FORMAT, report_of
from eval.verification.served import Answers, Loaded, Served, ServedPrompt, verified
from jobs.shared.acceptance import AcceptSettings, judge, say_verdict
from jobs.shared.base import override_names, say, wide_console
from jobs.shared.data import read_data
from jobs.shared.errors import RunFailedError, RunInterrupted
from jobs.shared.job import StoreJob
from jobs.shared.registry import register
from jobs.shared.settings import check
from jobs.verify.settings import VerifySettings


@register(
    "verify",
    VerifySettings,
    aim="ask a running server whether a list of corrections holds",
    parts={"accept": AcceptSettings(efficacy=1.0, bleed=0.0)},
    begins={"data": "facts"},
)
class Job(StoreJob):
    """Verifies a list on a server."""

    def run(self, config: DictConfig) -> None:
        """Asks, says what fell short, and writes the report.

        Raises:
            RunFailedError: a rule of acceptance is broken.
            RunInterrupted: Ctrl-C was pressed.
            ServerError: a server cannot be asked.
            ValueError: a line of the list is damaged, or a setting cannot be.
        """
        asked, accept = check(VerifySettings, config.job), check(AcceptSettings, config.job.accept)
        _require_measured(accept, asked)
        if config.data.on_error != "raise":
            raise ValueError(f"data.on_error={config.data.on_error}: a list is verified whole; leave it out")
        if "data.path" in override_names():
            raise SettingsError(
                f"data.path={config.data.path}: what is verified is job.list={asked.list}; leave it out"
            )
        facts = tuple(read_data({**config.data, "path": asked.list}))
        require_targets("job=verify", active_facts(facts))
        try:
            with locked(asked.place / ".lock"):
                report = _verify(asked, accept, facts, bool(config.force))
        except LockedError:
            raise LockedError(
                f"job.folder={asked.place}: another process verifies there; wait for it, or name another folder"
            ) from None
        except KeyboardInterrupt:
            raise RunInterrupted("the answers that came are kept; give the same command again") from None
        broken = [rule["said"] for rule in report["rules"] if not rule["passed"]]
        if broken:
            raise RunFailedError(f"{asked.list} at {asked.url} falls short: {'; '.join(broken)}")


def _require_measured(accept: AcceptSettings, asked: VerifySettings) -> None:
    """Refuses rules that nothing would be measured for (SettingsError)."""
    for name in ("perplexity_drift", "collisions"):
        if getattr(accept, name) is not None:
            raise SettingsError(f"job.accept.{name}: a server does not tell this; leave it out")
    if accept.preservation is not None and asked.before is None and not asked.before_is_served:
        raise SettingsError("job.accept.preservation: nothing is known of the model before; name it in before")


def _verify(asked: VerifySettings, accept: AcceptSettings, facts: Sequence[Fact], anew: bool) -> dict[str, Any]:
    """Asks and writes; the folder is held."""
    last, begin = _last(asked.place, "folder"), time.perf_counter()
    active = active_facts(facts)
    questions, scratch = asked.questions(active), list[Path]()
    before, said_before = _before(asked, questions, scratch, anew)
    answers = _answers(Served(asked.server()), questions, asked, scratch, anew)
    found = verified(active, answers, before, asked.via, asked.longest, asked.kept_tokens)
    earlier = tuple(map(Fact.from_dict, last["list"])) if last else ()
    report = report_of(facts, found, [{}] * len(found), Plan.between(earlier, facts), last)
    made_at = datetime.now().isoformat(timespec="seconds")
    model = asked.model or "the model"
    compared = f", compared with {said_before}" if said_before else ""
    report |= {
        "about": f"{asked.list}, asked of {model} at {asked.url} by {asked.via}{compared}, {made_at.replace('T', ' ')}",
        "made": made_at,
        **{"url": asked.url, "model": asked.model, "via": asked.via, "before": said_before, "source": asked.list},
        "mark": found[0].mark,
        "seconds": time.perf_counter() - begin,
        "list": [fact.to_dict() for fact in facts],
        "answers": [{"question": asdict(question), "answer": answer} for question, answer in answers.items()],
    }
    rules = judge(accept, report)
    given = override_names()  # a default rule that the list has no prompts for says nothing
    report["rules"] = [one for one in rules if one["found"] is not None or f"job.accept.{one['rule']}" in given]
    report["accepted"] = all(rule["passed"] for rule in report["rules"])
    write_text(asked.place / "report.html", page(report))
    write_json(asked.place / "report.json", report)
    for folder in scratch:
        shutil.rmtree(folder)
    _say(asked, report)
    return report


def _last(place: Path, setting: str) -> dict[str, Any] | None:
    """The last report in a folder, which a setting names.

    Raises:
        FileExistsError: something else lies there.
        ValueError: it is damaged, or of another version.
    """
    path = place / "report.json"
    if not path.is_file():
        return None
    report = read_object(path, "delete it to verify without a look at the last report")
    if "answers" not in report or report.get("format") != FORMAT:
        raise FileExistsError(
            f"job.{setting}={place}: the report.json there is of a build or of another version; name a folder of "
            "job=verify"
        )
    return report


def _before(
    asked: VerifySettings, questions: Sequence[ServedPrompt], scratch: list[Path], anew: bool
) -> tuple[Answers | None, str]:
    """What the model before says, and what it is called.

    Raises:
        ValueError: the earlier verification asked in another way.
    """
    if asked.before_is_served:
        server = asked.server(before=True)
        name = f"{asked.before_model or 'the model'} at {server.url}"
        return _answers(Served(server), questions, asked, scratch, anew), name
    if asked.before is None:
        return None, ""
    place = Path(asked.before).expanduser()
    if not (place / "report.json").is_file():
        with stage(f"Loading {asked.before}"):
            loaded = Loaded(asked.before, asked.via)
        return _answers(loaded, questions, asked, scratch, anew), asked.before
    last = _last(place, "before")
    assert last is not None
    if last["via"] != asked.via:
        raise SettingsError(f"job.before={asked.before}: it was asked by {last['via']}; give via={last['via']}, too")
    kept = {ServedPrompt(**each["question"]): str(each["answer"]) for each in last["answers"]}
    if missing := [question for question in questions if question not in kept]:
        say(
            f"{len(missing)} of {counted(len(questions), 'question')} were not asked in {asked.before}, and are "
            f"compared with nothing (the first: {on_one_line(missing[0].prompt)})"
        )
    return kept, f"{last['about']}"


def _answers(
    model: Served | Loaded, questions: Sequence[ServedPrompt], asked: VerifySettings, scratch: list[Path], anew: bool
) -> Answers:
    """The answers of one model; each is on the disk when it has come, and what is there is not asked again.

    Raises:
        ServerError: there is no answer to one of them.
    """
    name = hashlib.sha256(json.dumps(dict(model.identity), sort_keys=True).encode()).hexdigest()[:16]
    path = asked.place / f".answers-{name}"
    if anew:
        shutil.rmtree(path, ignore_errors=True)
    folder = RunFolder(path)
    scratch.append(path)
    kept = {ServedPrompt(**each["question"]): str(each["answer"]) for each in folder.cases("answers")}
    missing = [question for question in questions if question not in kept]
    if len(missing) < len(questions):
        there = len(questions) - len(missing)
        say(f"{there} of {len(questions)} answers are of an earlier command that was cut short (force=true: none)")

    def keep(question: ServedPrompt, answer: str) -> None:
        folder.append({"question": asdict(question), "answer": answer}, to="answers")
        kept[question] = answer

    if missing:
        model.ask(missing, keep, f"Asking {counted(len(missing), 'question')}")
    return {question: kept[question] for question in questions}


def _say(asked: VerifySettings, report: Mapping[str, Any]) -> None:
    short = [row for row in report["facts"] if row["state"] == "in force" and not _whole(row)]
    if short:
        table = Table(title=f"{len(short)} of {report['n_in_force']} facts fall short", title_justify="left")
        for name in ("id", "statement", "new object", "holds", "says", "paraphrases", "changed next to it"):
            table.add_column(name, overflow="fold")
        for row in short:
            right = sum(one["holds"] for one in row["paraphrases"])
            table.add_row(
                *(Text(printable(row[part])) for part in ("id", "statement", "target_new")),
                Text("yes", "green") if row["holds"] else Text("no", "red"),
                Text(printable(on_one_line(row["now"]))),
                f"{right} of {len(row['paraphrases'])}" if row["paraphrases"] else "",
                f"{len(row['changed_next_to_it'])} of {row['next_to_it']}" if row["next_to_it"] else "",
            )
        wide_console().print(table)
    say_verdict(report)
    say(f"the report is {asked.place / 'report.html'}")


def _whole(row: Mapping[str, Any]) -> bool:
    return row["holds"] and all(one["holds"] for one in row["paraphrases"]) and not row["changed_next_to_it"]
