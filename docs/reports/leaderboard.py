"""docs/leaderboard.md, .html and .csv: editors on CounterFact and zsRE, a table for each model, data set and mode.

`make leaderboard` does both steps. Each run is an ordinary run of run.py in the store. Whole tables of the data file
that the store has no run of are kept.
"""

import dataclasses
import gzip
import json
from pathlib import Path

from leaderboard_page import NAME, findings, not_run, plain, prepared
from leaderboard_tables import DATA, MODELS, PARTS, TABLE, Part, left_out
from options import FILES, OUTPUTS, ROOT, Data, Options, asking, deadline_of, some_of
from pages import Collected, kept, read_json
from report import Report
from runs import LIKE, chosen, how_made, relative, run
from words import provenance, rendered

from corrigenda.runs.store import Store
from corrigenda.system.files import write_json, write_text
from editing import EDITORS
from editing.registry import declaration
from eval.leaderboard import leaderboard
from eval.leaderboard.page import markdown, write_view
from eval.leaderboard.table import MODES
from eval.leaderboard.views import CasesView, cases_view, leaderboard_view

SCRIPT = "leaderboard.py"
options = asking(
    *("--minutes", "--write", "--anew", "overrides"),
    facts=(0, "facts of each table; by default what `PARTS` says"),
    models=some_of(MODELS),
    data=(FILES, "folder of the data files"),
    store=OUTPUTS / NAME,
    modes="single,batch",
    sets=some_of(DATA),
    only=("", "configurations, e.g. rome,finetune; all by default"),
)


def collect(arguments: Options) -> Collected | None:
    if missing := not_in_table():
        print(f"not in TABLE, and their declarations give no reason (unranked): {', '.join(missing)}")
    store, deadline = Store(arguments.store), deadline_of(arguments)
    if not arguments.write:
        write_facts(arguments)
        if not all(run(job, store, deadline) for job in jobs(arguments)):
            return None
    found = leaderboard(store.runs())
    view = leaderboard_view(found, arguments.docs)
    runs = {
        f"{run_of(dataclasses.asdict(board.key))}{row.label} seed {stored.config.get('seed', 0)}": how_made(stored)
        for board in found.boards
        for row in board.rows
        for stored in (row.entry.runs if row.entry else ())
    }
    tables = {place(board): (board, own) for board, own in zip(view["boards"], cases_view(found), strict=True)}
    if earlier := kept(NAME, arguments):  # its tables of which the store has no run
        boards = earlier.figures["view"]["boards"]
        for board, own in zip(boards, read_cases(cases_path(arguments.docs)), strict=True):
            if place(board) not in tables:
                tables[place(board)] = board, own
                runs |= {run: how for run, how in earlier.runs.items() if run.startswith(run_of(board))}
    ordered = [tables[key] for key in sorted(tables)]
    view["boards"] = [board for board, _ in ordered]
    write_cases([cases for _, cases in ordered], arguments.docs)
    return Collected({"view": view}, runs, earlier.earlier if earlier else ())


def place(board: Data) -> tuple[int, str, str, int]:
    """What the runs of a table are of: the model, the data set, and the mode, as the tables are ordered."""
    model = str(board["model"])
    return MODELS.index(model) if model in MODELS else len(MODELS), model, board["data"], MODES.index(board["mode"])


def run_of(board: Data) -> str:
    """How the names of a table's runs begin in the data; the smallest model has no name there."""
    model = "" if board["model"] == MODELS[0] else f"{board['model']} "
    return f"{model}{board['data']} {board['mode']} "


def not_in_table() -> list[str]:
    """The editors that are in the table by no configuration, and for which no reason is given."""
    table = {EDITORS.base(editor) for editor in TABLE}
    return [name for name in EDITORS.declared if name not in table and not declaration(EDITORS[name]).unranked]


def parts(arguments: Options) -> list[Part]:
    """The tables that are asked for, with as many facts as are asked for."""
    models, modes, sets = (
        chosen(getattr(arguments, name), dict.fromkeys(known), name.removesuffix("s"))
        for name, known in (("models", MODELS), ("modes", MODES), ("sets", DATA))
    )
    found = [part for part in PARTS if part.model in models and part.mode in modes and part.data in sets]
    return [dataclasses.replace(part, facts=arguments.facts or part.facts) for part in found]


def jobs(arguments: Options) -> list[list[str]]:
    """The overrides of every run, in the order in which they are done."""
    only = [name for name in arguments.only.split(",") if name]
    return [
        [
            *(f"mode={part.mode}", f"model={part.model}", f"data={part.data}"),
            *(f"data.path={relative(facts_file(part, arguments))}", f"data.limit={part.facts}", "data.on_error=skip"),
            f"editor={editor}",
            *(f"store={relative(arguments.store)}", f"before={relative(arguments.store / 'before')}"),
            f"save_edits={str(editor == LIKE).lower()}",
            *part.settings,
            *arguments.overrides,
        ]
        for part in parts(arguments)
        for editor in (TABLE if only else part.editors)
        if (editor in only if only else not left_out(editor, part.mode))
    ]


def facts_file(part: Part, arguments: Options) -> Path:
    """Where the facts of a table lie: those with a part of the neighbourhood prompts are the store's."""
    folder = arguments.data if part.neighbours is None else arguments.store / "facts" / str(part.neighbours)
    return Path(folder / DATA[part.data])


def write_facts(arguments: Options) -> None:
    """Writes the facts of the tables that have a part of the neighbourhood prompts."""
    for part in parts(arguments):
        if part.neighbours is not None:
            records = read_json(arguments.data / DATA[part.data])
            for record in records:
                record["neighborhood_prompts"] = record["neighborhood_prompts"][: part.neighbours]
            write_json(facts_file(part, arguments), records)


def cases_path(docs: Path) -> Path:
    """Where the cases lie that the page shows in detail: prompts and answers, which are large."""
    return docs / "data" / f"{NAME}-cases.json.gz"


def read_cases(path: Path) -> CasesView:
    """The cases that `write_cases` wrote; an end of the command where there are none."""
    if not path.is_file():
        raise SystemExit(f"{path}: the cases are missing; make them with the step 'collect'")
    found: CasesView = json.loads(gzip.decompress(path.read_bytes()))
    return found


def write_cases(cases: CasesView, docs: Path) -> None:
    """Writes the cases; the same cases give the same bytes."""
    path = cases_path(docs)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(cases, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def page(data: Data, docs: Path) -> list[Path]:
    """The three files; the cases are shown where they lie beside the data."""
    made_on = max((entry["begun"] for entries in data["runs"].values() for entry in entries), default="")
    path = next((path for path in (cases_path(docs), cases_path(ROOT / "docs")) if path.is_file()), cases_path(docs))
    cases = read_cases(path)
    boards = [prepared(*table) for table in zip(data["figures"]["view"]["boards"], cases, strict=True)]
    found = "\n\n".join(filter(None, (rendered(NAME, {"part": "finding", **one}).strip() for one in findings(boards))))
    seconds = rendered(NAME, {"part": "seconds"}).strip()
    view = data["figures"]["view"] | {"boards": boards, "made": made_on.replace("T", " ")}
    paths = write_view(view | {"about": f"{plain(found)} {seconds}"}, cases, docs, NAME)
    shown = {"part": "page", "tables": markdown(view | {"about": found}).rstrip(), **not_run(boards)}
    write_text(paths[0], rendered(NAME, shown | {"provenance": provenance(NAME, data, SCRIPT)}))
    return paths


REPORT = Report(NAME, SCRIPT, __doc__, options, collect, write_page=page)
if __name__ == "__main__":
    REPORT.main()
