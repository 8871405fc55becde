from pathlib import Path
from typing import Any

import layers
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "RESAMPLES", 200)


def facts_of(scores: list[float], n: int = 20) -> dict[int, dict[str, list[float]]]:
    """By layer the parts of S of n facts, all of them with the same share."""
    return {
        layer: {key: [float(number < round(share * n)) for number in range(n)] for key in layers.PARTS}
        for layer, share in enumerate(scores)
    }


def made_up(scores: list[float], effects: list[float], contexts: int | None = None, n: int = 20) -> dict[str, Any]:
    """A page's data in which S at a layer and the traced effect there are as given; the facts differ a little."""
    noise = np.random.default_rng(0).normal(scale=0.002, size=(24, len(effects)))
    metric = {key: {"after": 0.0, "low": None, "high": 0.0} for key in ("preservation", "neighbourhood_kl")}
    by_layer = {
        str(layer): {
            "metrics": {
                key: {"after": share, "low": share - 0.1, "high": share + 0.1} for key in ("score", *layers.PARTS)
            }
            | metric,
            "facts": facts_of(scores, n)[layer],
            "failed": int(layer == 1),
        }
        for layer, share in enumerate(scores)
    }
    found = {
        "n_layers": len(scores),
        "contexts": contexts,
        "default_layer": 1,
        "subjects": [f"subject {number}" for number in range(n)],
        "layers": by_layer,
        "traced": {
            "of": "counterfact",
            "unknown": 3,
            "layers": list(range(len(scores))),
            "peak": int(np.argmax(effects)),
            "window": 3,
            "subjects": [f"traced {number}" for number in range(24)],
            "effects": (np.array(effects) + noise).tolist(),
        },
    }
    way = {"code": "c0de", "commit": "abc", "versions": {"python": "3", "torch": "2", "transformers": "5"}}
    way["machine"] = {"system": "Linux", "processor": "x86_64", "threads": 1}  # type: ignore[assignment]
    return {
        "command": "python docs/reports/layers.py collect",
        "made": [way],
        "runs": {"tiny: traces": [{"made": 0, "begun": "", "ended": "", "load": [0.0, 0.0]}]},
        "figures": {"models": {"tiny": found}},
    }


def page(data: dict[str, Any], folder: Path) -> str:
    """The page's text."""
    return layers.REPORT.page(layers.REPORT.digested(data), folder)[0].read_text()


def test_correlations_by_hand() -> None:
    """Depth 0 1 2 3 4, S in ranks 2 1 4 3 5, effects in ranks 1 3 2 5 4: 0.3, 0.8, (0.3 - 0.64) / 0.36."""
    facts = np.array([[parts[key] for key in layers.PARTS] for parts in facts_of([0.2, 0.1, 0.4, 0.3, 0.5]).values()])
    found = layers.correlations(facts, np.array([[0.1, 0.3, 0.2, 0.5, 0.4]] * 2), range(5))
    assert found == pytest.approx((0.3, 0.8, -0.34 / 0.36))


def test_the_score_is_of_means_and_the_effect_a_mean_over_facts() -> None:
    """The harmonic mean of 1, 0.5 and 0.5 at layer 0 is 0.6, and 0.7 at layer 1; each fact alone would have 0."""
    facts = np.array([[[1, 1], [1, 0], [0, 1]], [[0.7, 0.7]] * 3, [[0.5, 0.5]] * 3])
    by_hand = np.corrcoef([2, 3, 1], [2, 1, 3])[0, 1]  # the effects' means: 0.3, 0.2, 0.4
    found = layers.correlations(facts, np.array([[0.6, 0.0, 0.4], [0.0, 0.4, 0.4]]), [0, 1, 2])
    assert found[0] == pytest.approx(by_hand)


DEPTH = np.arange(30)


@pytest.mark.parametrize(
    ("extra_score", "extra_effect", "said"),
    [
        (np.where(DEPTH // 2 % 2, 0.05, -0.05), np.where(DEPTH % 2, 0.05, -0.05), "do not show that tracing says more"),
        (np.where(DEPTH % 2, 0.2, -0.2), np.where(DEPTH % 2, 0.2, -0.2), "tracing says something about S that depth"),
        (np.where(DEPTH % 2, 0.2, -0.2), np.where(DEPTH % 2, -0.2, 0.2), "S is lower where the effect is larger"),
    ],
)
def test_the_page_claims_what_the_partial_correlation_shows(
    tmp_path: Path, extra_score: np.ndarray, extra_effect: np.ndarray, said: str
) -> None:
    scores = 0.75 - 0.5 * DEPTH / 30 + extra_score
    effects = 0.5 - 0.4 * DEPTH / 30 + extra_effect
    data = made_up(scores.tolist(), effects.tolist(), n=60)
    figures = data["figures"]["models"]["tiny"]
    draw = np.random.default_rng(1)
    for found in figures["layers"].values():  # each layer has facts of its own that are edited well
        found["facts"] = {key: draw.permutation(values).tolist() for key, values in found["facts"].items()}
    text = " ".join(page(data, tmp_path).split())
    assert said in text
    assert "**On tiny" in text
    assert "| tiny | 30 of 30 |" in text


def test_few_facts_give_a_wide_interval() -> None:
    draw = np.random.default_rng(0)
    facts, effects = (draw.uniform(size=(10, 3, 20)) < 0.7).astype(float), draw.uniform(size=(24, 10))
    names = [str(number) for number in range(24)]
    bounds = layers.bootstrapped(facts, names[:20], effects, names, range(10))
    assert all(found is not None and found[1] - found[0] > 0.4 for found in bounds)
    alike = layers.bootstrapped(facts, ["one subject"] * 20, effects, ["one"] * 24, range(10))
    assert all(found is not None and found[0] == found[1] for found in alike)  # one subject: nothing to draw


def test_the_page_from_made_up_data(tmp_path: Path) -> None:
    data = made_up([0.8, 0.9, 0.7, 0.6], [0.2, 0.3, 0.1, 0.05], contexts=5)
    text, picture = page(data, tmp_path), tmp_path / "localization.png"
    layers.draw(data, picture)
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert text.splitlines()[2].startswith("**")  # the finding comes first
    assert text.rstrip().splitlines()[-1].startswith("[data/localization.json](data/localization.json) has the figures")
    assert "ROME with 5 contexts and the bare prompt at every layer of tiny, on the first 20 facts" in text
    assert "first 24 facts of CounterFact that the model knows" in " ".join(text.split())
    assert "has its peak at layer **1**" in text
    assert "The highest S is at layer **1** (90.0 %)" in text
    assert "| 1 (peak) (default) | 90.0 [80.0, 100.0] |" in text
    assert "failed: 1 at layer 1." in text
    assert page(data, tmp_path / "again") == text


def test_each_model_has_its_own_section_and_verdict(tmp_path: Path) -> None:
    data = made_up([0.8, 0.9, 0.7, 0.6], [0.2, 0.3, 0.1, 0.05])
    [other] = made_up([0.5, 0.6, 0.9], [0.1, 0.1, 0.4])["figures"]["models"].values()
    for found in other["layers"].values():
        for key in ("preservation", "neighbourhood_kl"):
            del found["metrics"][key]
    other["layers"].pop("0")
    other["traced"]["of"] = "known_facts"
    [traced] = made_up([0.5, 0.6], [0.1, 0.4])["figures"]["models"].values()
    data["figures"]["models"] |= {"small": other, "traced": traced | {"layers": {}, "subjects": []}}
    text = page(data, tmp_path)
    layers.draw(data, tmp_path / "localization.png")
    first, second, third = (text.index(f"## {model}") for model in ("tiny", "small", "traced"))
    assert first < text.index("| layer | ES | PS | NS | S | same ten words | neighbourhood KL |") < second
    assert "| layer | ES | PS | NS | S |\n" in text[second:]
    assert "at 2 of 3 layers of small" in " ".join(text.split())
    assert "free answers and perplexity were not measured" in " ".join(text[second:].split())
    assert "first 24 facts of the known facts of Meng et al. 2022" in " ".join(text[second:].split())
    assert "The highest S is at layer **2** (90.0 %)" in text[second:third]
    assert "**On traced facts were traced, and none was edited" in text
    assert "| traced | 0 of 2 |  |  |  | layer 1 |  |" in text
    assert "highest S is" not in text[third:]
