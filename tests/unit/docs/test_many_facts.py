from typing import Any

import many_facts_page as report
import words


def lines(methods: dict[str, Any], name: str = "zsre", batch: int = 20) -> list[str]:
    """The page's lines, from the methods of a data set; the first are of what every page has."""
    shape = {"model": "tiny", "d_ffn": 48, "batch": batch, "scored": 40, "not_run": []}
    figures = {**shape, "data": {name: methods}}
    return words.rendered("many_facts", {**figures, **report.digest(figures), "provenance": ""}).splitlines()


def of_forty(share: float, blank: float = 0.0) -> dict[str, Any]:
    """A method after 40 facts, of which it says so many on paraphrases and on prompts."""

    def value(after: float) -> dict[str, Any]:
        return {"before": 0.0, "after": after, "low": after, "high": after, "n": 40}

    columns = {f"{number}": [float(number < share * 40)] for number in range(40)}
    metrics = {key: value(share) for key in ("paraphrase_free_generation_strict", "free_generation_strict")}
    metrics |= {"preservation": value(1 - share), "perplexity_drift": value(0.1), "blank_answers": value(blank)}
    facts = {"subjects": {id_: id_ for id_ in columns}, "columns": columns}
    return {"points": [{"t": 40, "metrics": metrics}], "facts": {"40": facts}, "orders": {}}


def test_the_planned_comparisons() -> None:
    """By hand: 36 of 40 facts against 20: 40 points, of which an interval and a corrected p-value are told."""
    methods = {"none": of_forty(0.0), "memit": of_forty(0.9), "memit_plain": of_forty(0.5)}
    said = lines(methods)
    [row] = [line for line in said if line.startswith("| MEMIT 0.1 less plain MEMIT 0.1 | 40 | 40.0 [")]
    assert row.endswith("| < 0.001 | -40.0 | 0.000 |")
    assert any("(n = 40)" in line for line in said)
    # In the first batch there is nothing earlier to keep.
    assert "### Planned comparisons" not in lines(methods, batch=40)


def test_the_differences_of_the_same_orders() -> None:
    """By hand: gaps of 10, 10 and 20 points have a mean of 13.3, and t(2) = 4.303 makes 14.3 of their spread."""

    def points(share: float, key: str = "free_generation_strict") -> list[dict[str, Any]]:
        value = {"before": 0.0, "after": share, "low": share, "high": share, "n": 40}
        return [{"t": 20, "metrics": {key: value | {"after": 1.0}}}, {"t": 40, "metrics": {key: value}}]

    def method(own: float, *others: float) -> dict[str, Any]:
        orders = {str(order): points(share) for order, share in enumerate(others, start=1)}
        return {"points": points(own), "facts": {}, "orders": orders}

    def rows(**methods: dict[str, Any]) -> list[str]:
        return [line for line in lines(methods) if " less " in line and line.startswith("| ")]

    memit, plain = method(0.9, 0.8, 0.7), method(0.8, 0.7, 0.5)
    [row] = rows(memit=memit, memit_plain=plain, alphaedit=method(0.1))  # AlphaEdit has one order
    assert row == "| MEMIT 0.1 less plain MEMIT 0.1 |  | 13.3 [-1.0, 27.7] |  |  |  |  |"
    # Where one has fewer orders, those of both count; where a figure is lacking in one of them, none is told.
    del plain["orders"]["2"]
    [row] = rows(memit=memit, memit_plain=plain)
    assert "| 10.0 |" in row
    plain["orders"]["1"] = points(0.7, "efficacy_success")
    [row] = rows(memit=memit, memit_plain=plain)
    assert row.endswith("0.1 |  |  |  |  |  |  |")
    assert rows(memit=memit) == []
