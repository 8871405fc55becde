import json
from pathlib import Path

import overview
import pytest


def trace(score: float) -> dict[str, object]:
    scores = [[0.1, 0.2, 0.0], [score, 0.2, 0.0]]
    return {"window": 1, "tokens": ["Kyoto", " lies", " in"], "subject": [0, 1], "scores": scores}


def found() -> dict[str, object]:
    fact = {
        "statement": "Kyoto lies in",
        "old": "Japan",
        "new": "Brazil",
        "before": " Japan, where",
        "after": " Brazil",
    }
    metric = {"before": 0.0, "after": 1.0}
    return {
        "model": "a model",
        "editor": "rome",
        "layer": 3,
        "answers": [fact] * 2,
        "trace": trace(0.4),
        "metrics": dict.fromkeys(overview.SHOWN, metric),
    }


def test_the_picture_shows_what_was_found(tmp_path: Path) -> None:
    overview.draw(found(), tmp_path / "a.png")
    other = found()
    other["trace"] = trace(0.3)
    overview.draw(other, tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() != (tmp_path / "b.png").read_bytes()


def test_a_picture_without_a_metric_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="paraphrase_success"):
        overview.draw(
            found() | {"metrics": {"free_generation_strict": {"before": 0.0, "after": 1.0}}}, tmp_path / "a.png"
        )


def test_the_kept_picture_is_small_and_of_real_answers() -> None:
    assert overview.PICTURE.stat().st_size < 150_000
    kept = json.loads(overview.DATA.read_text(encoding="utf-8"))
    assert len(kept["answers"]) == overview.FACTS
    assert set(kept["metrics"]) == set(overview.SHOWN)
