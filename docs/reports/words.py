"""How the pages of figures write them: templates of `docs/templates`, and what stands in these.

A template holds the prose, in Markdown; the report gives it the figures. ``{% filter wrap %}`` breaks running text into
lines of a length that can be read, ``{% filter line %}`` makes one line of it, ``{{ share|f(".1f") }}`` writes a number
as Python's `format` does, ``{{ values|figure("score") }}`` one with its interval as a metric is written, and
``{{ provenance }}`` is how the figures were made.
"""

import textwrap
from collections import Counter
from collections.abc import Mapping
from functools import cache

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from options import Data
from pages import DOCS, UNKNOWN, numbers_in, read_data

from eval.metrics import METRICS
from eval.metrics.unit import unit_of
from eval.protocols.curves import cell, value_at

TEMPLATES = DOCS / "templates"
ALPHA = 0.05  # a difference is told apart from none where p, corrected for all tests of its table, is below this
SPARE_LOAD = 0.5  # how much more than a command's own threads the load average of an idle machine may be


def provenance(name: str, data: Data, script: str, timed: bool = False) -> str:
    """The last section of a page: how its figures were made, in short; the data file has the whole of it."""
    # Where the page has seconds (`timed`), they are those of an idle machine if the load at all ends of runs says so.
    entries = [[(data["made"][one["made"]], one) for one in made] for made in data["runs"].values()]
    codes = [code for made in entries for code in ([way["code"] for way, _ in made] or [UNKNOWN])]
    loads = [(way["machine"]["threads"], load) for made in entries for way, one in made for load in one["load"]]
    told = [(threads, load) for threads, load in loads if load is not None]
    ran = Counter(place for made in entries for place in {place_of(way) for way, _ in made})
    about = {
        "codes": list(dict.fromkeys(codes)),
        "loads": [load for _, load in told],
        "load_known": bool(entries) and all(entries) and len(told) == len(loads),
        "idle": all(load <= threads + SPARE_LOAD for threads, load in told),
    }
    about |= {"places": {place: ran[place] for place in map(place_of, data["made"])}, "runs": len(entries)}
    about |= {"name": name, "script": script, "timed": timed, "unknown": UNKNOWN}
    return rendered("provenance", about).rstrip()


def place_of(way: Data) -> str:
    """The packages and the machine of a run."""
    packages, machine = way["versions"], way["machine"]
    n = machine["threads"]
    return (
        f"Python {packages['python']}, torch {packages['torch']}, transformers {packages['transformers']}; "
        f"{machine['system']} {machine['processor']}, {machine.get('gpu', 'CPU')}, {n} thread{'s' * (n != 1)}"
    )


def rendered(name: str, shown: Data) -> str:
    """The text that a template gives; a name that it lacks is an error."""
    return _environment().get_template(f"{name}.md").render(shown).rstrip() + "\n"


@cache
def _environment() -> Environment:
    """Pages are Markdown of our own figures: nothing is escaped."""
    found = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    found.filters |= {one.__name__: one for one in (line, chance, columns, short, figure, cell)}
    found.filters |= {"wrap": wrapped, "f": format, "of": lambda key, values: values[key]}
    found.globals |= {"METRICS": METRICS, "alpha": ALPHA, "value_at": value_at, "yardstick": yardstick, "ends": ends}
    return found


def yardstick(name: str, native: bool = True, floor: bool = True) -> str:
    """What the figures of a table are to be read by, as running text: docs/yardsticks.md has it for all facts."""
    # What the unedited model says on paraphrases (`native`), and what stays in bfloat16 with no edit (`floor`).
    of = read_data("yardsticks")["digest"]["sets"].get(name)
    return rendered("yardstick", {"of": of, "native": native, "floor": floor}).strip()


def ends(places: str, n: int) -> str:
    """Of facts, as "1-300" or "3-5,8-9", the first n / 2 and the last: what a sequence scores."""
    numbers = numbers_in(places)
    if len(numbers) <= n:
        return places
    first, last = numbers[: n // 2], numbers[len(numbers) - n // 2 :]
    return f"{first[0]}-{first[-1]},{last[0]}-{last[-1]}"


def wrapped(text: str, indent: str = "") -> str:
    """Running text in lines of a length that can be read; `indent` stands before all but the first."""
    return "\n".join(
        textwrap.wrap(text, 118, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
    ) + "\n" * text.endswith("\n")


def line(text: str) -> str:
    """Running text in a single line."""
    return " ".join(text.split()) + "\n"


def columns(heads: list[str]) -> str:
    """The head of a table."""
    return f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}"


def chance(p: float) -> str:
    """A p-value."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def short(value: float) -> str:
    """A number of three digits or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def figure(
    values: Mapping[str, float | None] | float | None, of: str, name: str = "mean", digits: int | None = None
) -> str:
    """A figure, alone or with its interval, from "low" to "high"; empty where there is none."""
    # Written as the metric or the unit `of`, with so many `digits` (by default the unit's); `name` is the figure's key.
    unit = METRICS.named(of).written if METRICS.find(of) else unit_of(of)
    found = values if isinstance(values, Mapping) else {name: values}
    value, *bounds = (
        None if (one := found.get(key)) is None else unit.text(one, digits) for key in (name, "low", "high")
    )
    return value or "" if None in bounds else f"{value} [{', '.join(map(str, bounds))}]"
