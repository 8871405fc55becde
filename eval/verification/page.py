"""The page of a report: one self-contained file, with a table to sort and to search."""

from collections.abc import Mapping
from typing import Any

from eval.metrics import METRICS
from eval.templating import environment

FIGURES = (
    *("free_generation_strict", "free_generation_lenient", "paraphrase_free_generation_strict"),
    *("paraphrase_free_generation_lenient", "efficacy_success", "paraphrase_success", "neighbourhood_success"),
    *("native_consistency", "preservation", "first_token_kept", "answer_kept", "bleed"),
    *("neighbourhood_kl", "locality_kl", "perplexity_drift"),
)
"""The metrics that the page shows, where they were measured."""


def page(report: Mapping[str, Any]) -> str:
    """The page of a report as `report_of` gives it, with ``about``, a line on how it was made, and ``rules``.

    It loads nothing. It is light or dark as the reader's system is.
    """
    template = environment("eval.verification").get_template("report.html.j2")
    return template.render(report=report, figures=figures(report))


def figures(report: Mapping[str, Any]) -> list[dict[str, str]]:
    """Rows of the table of metrics, of those that ``report["metrics"]`` has, as texts."""
    rows = []
    for key in FIGURES:
        found = report["metrics"].get(key)
        if found is None:
            continue
        unit = METRICS.named(key).written
        cells = {name: "" if found[name] is None else unit.text(found[name]) for name in ("before", "after")}
        low, high = found["low"], found["high"]
        interval = "" if low is None else f"{unit.text(low)} to {unit.text(high)}"
        about = {"title": METRICS.named(key).title, "unit": METRICS.named(key).unit, "n": str(found["n"])}
        rows.append({**about, **cells, "interval": interval})
    return rows
