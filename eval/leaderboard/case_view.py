"""What was asked in a case, and what came before and after: what the page shows of it."""

from collections.abc import Mapping
from typing import Any

_PROBES = ("paraphrases", "portability", "neighbourhood", "locality")


def case_view(record: Mapping[str, Any], seconds: float | None, seed: Any) -> dict[str, Any]:
    """The view of a case's record in a run of a seed, whose edit took so many seconds."""
    fact = record["fact"]
    before = (record["before"] or {}).get("prompts", {})
    after = record["after"]["prompts"]
    old = (before.get("prompt") or [{}])[0]
    new = (after.get("prompt") or [{}])[0]
    view = {
        "id": record["id"],
        "seed": seed,
        "asked": fact["prompt"].replace("{}", fact["subject"]),
        "true": fact.get("target_true"),
        "new": fact.get("target_new"),
        "p": [_rounded(state.get(name)) for state in (old, new) for name in ("p_new", "p_true")],
        "before": old.get("answer"),
        "after": new.get("answer"),
        "right": False if record.get("error") else new.get("lenient"),
        "seconds": _rounded(seconds),
        "error": record.get("error") or "",
        "probes": [],
    }
    for kind in _PROBES:
        earlier = before.get(kind) or [{}] * len(after.get(kind, []))
        for first, last in zip(earlier, after.get(kind, []), strict=False):
            kept = last.get("preserved")
            verdict = kept if kept is not None else last.get("lenient")
            if "answer" in first or "answer" in last or verdict is not None:
                view["probes"].append([kind, last["prompt"], first.get("answer"), last.get("answer"), verdict])
    return view


def _rounded(value: float | None) -> float | None:
    """Four digits that matter, for reading; the records themselves have all of them."""
    return None if value is None else float(f"{value:.4g}")
