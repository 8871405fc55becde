import re
from collections.abc import Callable, Mapping
from typing import Any

import pages

MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
NOT_TRIED = "not tried"
Data = Mapping[str, Any]
Verdict = Callable[[Data, str], str | None]
"""Of a page's data and a model the cell; None where the data have nothing of the model."""


def verdict(low: float | None, high: float | None) -> str:
    """Whether an interval lies wholly on one side of 0."""
    if low is None or high is None:
        return "open"
    return "holds" if low > 0 else "does not hold" if high < 0 else "open"


def of_model(work_out: Callable[[Data, Data], str | None]) -> Verdict:
    """A verdict of a page that has several models, from the figures and the digest of one."""

    def found(data: Data, model: str) -> str | None:
        figures = data["figures"]["models"].get(model)
        return figures and work_out(figures, data["digest"]["models"][model])

    return found


def depth(figures: Data, digest: Data) -> str | None:
    if not figures["layers"]:
        return None
    return verdict(*(digest["correlations"][2]["interval"] or (None, None)))


def lowest_third(figures: Data, digest: Data) -> str:
    return "holds" if figures["traced"]["peak"] < figures["n_layers"] / 3 else "does not hold"


def gain(factor: str, control: str) -> Verdict:
    def found(figures: Data, digest: Data) -> str:
        [one] = [one for one in digest["gains"] if (one["factor"], one["control"]) == (factor, control)]
        [held_out] = [part for part in one["parts"] if part["where"] == "held_out"]
        return verdict(held_out["low"], held_out["high"])

    return of_model(found)


def claim(name: str) -> Verdict:
    said = {"replicates": "holds", "does not replicate": "does not hold", "open": "open"}

    def found(figures: Data, digest: Data) -> str | None:
        return said[digest["claims"][name]["verdict"]] if name in digest["claims"] else None

    return of_model(found)


def early_exit(figures: Data, digest: Data) -> str | None:
    if "early_exit" not in figures:
        return None
    _, low, high = figures["early_exit"]["rules"]["sub_updates"]["saved"]
    return "does not hold" if high == 0 else verdict(low, high)


def real(work_out: Callable[[Data], str | None]) -> Verdict:
    return lambda data, model: (found := data["digest"]["shown"].get(model)) and work_out(found)


def answers_stay(found: Data) -> str | None:
    row = found["rows"].get("contexts") or found["rows"].get("longer-8")
    return row and verdict(*(row["answer_kept"][one] - row["preservation"][other] for one, other in BOUNDS))


BOUNDS = (("low", "high"), ("high", "low"))


def words_move(found: Data) -> str | None:
    row = found["rows"].get("bfloat16")
    return row and verdict(1 - row["preservation"]["high"], 1 - row["preservation"]["low"])


def nothing_told_apart(row: str, gains: bool = False) -> Verdict:
    """Nothing is told apart, or (`gains`) nothing for the worse."""

    def found(found: Data) -> str | None:
        if not (tests := found["tests"].get(row)):
            return None
        told = [(key, one["mean"]) for key, one in tests["of"].items() if one["p"] < 0.05]
        if gains:
            told = [(key, mean) for key, mean in told if (mean > 0) == (key == "bleed")]
        return "does not hold" if told else "holds"

    return real(found)


def only(holds: Callable[[Data], bool]) -> Verdict:
    """A verdict of a page of one model."""

    def found(data: Data, model: str) -> str | None:
        figures = data["figures"]
        if model != (figures["model"] if "model" in figures else figures["collect"]["model"]):
            return None
        return "holds" if holds(data) else "does not hold"

    return found


def frontier(key: str, work_out: Callable[[Data], str]) -> Verdict:
    """Of a model's first set in which `memit` has a figure."""

    def found(data: Data, model: str) -> str | None:
        shown = data["digest"]["shown"]
        sets = (shown.get(f"{model} {name}") for name in ("counterfact 300", "counterfact 100"))
        return next((work_out(one) for one in sets if one and one["rows"].get("memit", {}).get(key)), None)

    return found


def keeps_half(found: Data) -> str:
    kept = found["rows"]["memit"]["answer_kept_same_subject"]
    return verdict(0.5 - kept["high"], 0.5 - kept["low"])


def beside_the_weights(found: Data) -> str:
    tests = found["tests"]["scoped"]
    keys = ("paraphrase_free_generation_strict", "answer_kept")
    return "holds" if all(tests[key]["p"] < 0.05 and tests[key]["mean"] > 0 for key in keys) else "open"


def second_round(data: Data) -> bool:
    [one] = [one for one in data["digest"]["compared"] if (one["left"], one["right"]) == ("2", "1")]
    free = one["tests"]["free_generation_strict"]
    return bool(free["low"] > 0 and free["p"] < 0.05)


def variants(key: str, more: str, less: str) -> Callable[[Data], bool]:
    """Whether a figure of one variant of a closed form lies above that of another, by intervals that do not touch."""

    def holds(data: Data) -> bool:
        rows = (data["figures"]["variants"][name]["points"][0]["metrics"][key] for name in (more, less))
        larger, smaller = rows
        return bool(larger["low"] > smaller["high"])

    return holds


def widened(data: Data) -> bool:
    """The widest of the curve against the narrowest, on paraphrases and on questions of the edits' form."""
    narrow, *_, wide = data["digest"]["points"]["grace_wide"]
    keys = ("paraphrase_free_generation_strict", "same_form")
    return all(wide[key]["low"] > narrow[key]["high"] for key in keys)


def few_contexts(data: Data) -> bool:
    [one] = [one for one in data["digest"]["compared"] if (one["left"], one["right"]) == ("5", "20")]
    keys = ("paraphrase_success", "neighbourhood_success", *BOTH, "free_generation_strict")
    return all(one["tests"][key]["p"] >= 0.05 for key in keys if key in one["tests"])


BOTH = ("paraphrase_free_generation_strict", "preservation")


def board(data: Data, model: str) -> str | None:
    """No editor says half of the paraphrases and leaves half of the neighbours word for word."""
    for one in data["figures"]["view"]["boards"]:
        if (one["data"], one["mode"], one["model"]) == ("counterfact", "batch", model):
            cells = [[row["cells"][key] for key in BOTH] for row in one["rows"] if row["cells"].keys() >= {*BOTH}]
            half = {end: any(min(cell[end] for cell in row) >= 0.5 for row in cells) for end in ("low", "high")}
            return "does not hold" if half["low"] else "open" if half["high"] else "holds"
    return None


def at_the_relation(key: str) -> Callable[[Data, Data], str]:
    """An edit at the relation's last token has more of it than one at the subject's."""

    def found(figures: Data, digest: Data) -> str:
        difference = digest["table"][key]["difference"]
        return verdict(difference["low"], difference["high"])

    return found


def with_accuracy(figures: Data, digest: Data) -> str | None:
    found = digest.get("faithfulness_with_accuracy")
    return found and verdict(*found[1:])


def integrated_gradients(figures: Data, digest: Data) -> str:
    """Whether circuits by EAP-IG are less far from the whole model than those by EAP."""
    off = digest["apart"]["off"]
    if off["p"] >= 0.05:
        return "open"
    return "holds" if off["mean"] < 0 else "does not hold"


def gains_nothing(way: str) -> Verdict:
    """Whether a way to choose settings does nothing better than what ships that is told apart, by any editor."""

    def found(figures: Data, digest: Data) -> str:
        better = [
            key
            for editor, one in figures.items()
            for key, test in one["tests"].get(way, {}).items()
            if test["difference"] > 0 and digest["editors"][editor]["p"][way][key] < 0.05
        ]
        return "does not hold" if better else "holds"

    return of_model(found)


FINDINGS: dict[str, Verdict] = {
    "localization.md: tracing": of_model(depth),
    "localization.md: third": of_model(lowest_third),
    "neurons.md: suppress": gain("suppress", "most active"),
    "neurons.md: enhance": gain("enhance", "most active"),
    "ffn-lens.md: subject": claim("subject"),
    "ffn-lens.md: relation": claim("relation"),
    "ffn-lens.md: enriched": claim("enriched"),
    "ffn-lens.md: extracted": claim("extracted"),
    "ffn-lens.md: last token": claim("last_token"),
    "ffn-lens.md: agreement": claim("agreement_above"),
    "ffn-lens.md: single memory": claim("alone"),
    "ffn-lens.md: settled": claim("settled"),
    "ffn-lens.md: early exit": of_model(early_exit),
    "real-models.md: bfloat16": real(words_move),
    "real-models.md: answers": real(answers_stay),
    "real-models.md: products": nothing_told_apart("products"),
    "real-models.md: shipped text": nothing_told_apart("longer", gains=True),
    "leaderboard.md: both": board,
    "frontier.md: same subject": frontier("answer_kept_same_subject", keeps_half),
    "frontier.md: entries": frontier("answer_kept", beside_the_weights),
    "rounds.md: twice": only(second_round),
    "rounds.md: layers": only(variants("token_accuracy", "1", "layers-1")),
    "rounds.md: ratio, holds": only(variants("token_accuracy", "1", "ratio-30")),
    "rounds.md: ratio, drift": only(variants("perplexity_drift", "1", "ratio-30")),
    "tradeoff.md: widen": only(widened),
    "contexts.md: five": only(few_contexts),
    "entity-relation.md: same subject": of_model(at_the_relation("answer_kept_same_subject")),
    "entity-relation.md: bleed": of_model(at_the_relation("bleed")),
    "relations.md: accuracy": of_model(with_accuracy),
    "circuits.md: nearer": of_model(integrated_gradients),
    "tuned.md: tuned": gains_nothing("tuned"),
    "tuned.md: traced": gains_nothing("layer=auto"),
}
"""By page and a word of the finding, in the order of the table."""


def test_the_table_of_findings_is_what_the_data_say() -> None:
    text = (pages.DOCS / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \| (.+?) \| \[(\S+?)\]\(\S+?\) \|$", text, re.MULTILINE)
    assert len(rows) == len(FINDINGS)
    wrong = {}
    for (name, work_out), (finding, *cells, page) in zip(FINDINGS.items(), rows, strict=True):
        assert name.startswith(f"{page}: "), (name, finding)
        data = pages.read_data(page.removesuffix(".md"))
        expected = [work_out(data, model) or NOT_TRIED for model in MODELS]
        if cells != expected:
            wrong[finding] = f"the data say {' | '.join(expected)}"
    assert not wrong, "write it into docs/README.md"
