import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import tiny
import torch

from corrigenda import Edit, EditRefusedError, Fact, LanguageModel, ValueEdit
from corrigenda.errors import SettingsError
from corrigenda.runs.folder import RunFolder
from editing import FineTune
from editing.baselines.controls import NoEdit
from eval.scoring.candidates import bits_known
from jobs.capacity.job import CapacitySettings, way_named
from jobs.capacity.measuring import measure_capacity
from jobs.capacity.results import Capacity, Point, crossing

CITIES = ("Paris", "Rome", "London", "Berlin")
PEOPLE = ("Thomas", "Danielle", "Darrieux", "Eiffel")
LEARNS = FineTune(layer=1, lr=3e-2, steps=15, epochs=15, stop=0.01)


lm = pytest.fixture(tiny.llama, scope="module")


def measured(
    lm: LanguageModel, folder: Path, counts: Sequence[int] = (1, 4), n: int = 4, known: bool = False, **ways: object
) -> Capacity:
    """Of each person the city that the model finds most likely (`known`), or the first of which it knows nothing."""
    facts = []
    for name in PEOPLE:
        cities = [Fact(name, "{} was born in the city of", city, relation="born") for city in CITIES]
        bits = bits_known(lm, cities, {"born": CITIES})
        facts.append(cities[bits.index(max(bits) if known else 0.0)])
    return measure_capacity(lm, facts, {"born": CITIES}, ways, counts, n, RunFolder(folder))  # type: ignore[arg-type]


def at_random(lm: LanguageModel, facts: Sequence[Fact]) -> Edit:
    """A change of the size of the edit's, in a random direction."""
    edit = LEARNS.edit(lm, facts)
    noise = torch.randn(edit.deltas[1].shape, generator=torch.Generator().manual_seed(len(facts)))
    return ValueEdit.of(lm, edit.origin, {1: noise * (edit.norm(1) / noise.norm())})


def test_a_random_update_is_told_from_none_and_from_an_edit(lm: LanguageModel, tmp_path: Path) -> None:
    found = measured(lm, tmp_path, edit=LEARNS.edit, random=at_random, none=NoEdit().edit)
    bits = {way: [point.bits_per_fact() for point in points] for way, points in found.curves.items()}
    for place in (0, 1):
        assert bits["none"][place] == pytest.approx((0, 0, 0), abs=1e-5)
        assert bits["random"][place][2] < bits["edit"][place][1]
    assert bits["edit"][0][0] > 1
    d_ffn, d_model = lm.memory(1).values.shape
    assert [(point.count, point.parameters) for point in found.curves["edit"]] == [(n, d_ffn * d_model) for n in (1, 4)]
    assert found.knee("none") is found.knee("random") is None
    assert found.knee("edit") is not None
    known = measured(lm, tmp_path / "known", known=True, random=at_random, none=NoEdit().edit)
    for random, none in zip(known.curves["random"], known.curves["none"], strict=True):
        assert abs(none.gains).max() < 1e-5
        assert abs(random.gains).max() > 0.05


def test_what_is_measured_is_kept_and_not_measured_again(lm: LanguageModel, tmp_path: Path) -> None:
    asked = []

    def dies(lm: LanguageModel, facts: Sequence[Fact]) -> Edit:
        asked.append(len(facts))
        if asked == [1, 1]:
            raise KeyboardInterrupt
        return NoEdit().edit(lm, facts)

    with pytest.raises(KeyboardInterrupt):
        measured(lm, tmp_path, (1, 2), 2, way=dies)
    found = measured(lm, tmp_path, (1, 2), 2, way=dies)
    assert asked == [1, 1, 1, 2]
    whole = measured(lm, tmp_path / "again", (1, 2), 2, way=NoEdit().edit)
    for one, other in zip(found.curves["way"], whole.curves["way"], strict=True):
        assert (one.before, one.after, one.subjects) == (other.before, other.after, other.subjects)
    assert sum(1 for _ in RunFolder(tmp_path).cases("before")) == 2


def test_a_refused_edit_holds_nothing(lm: LanguageModel, tmp_path: Path) -> None:
    def refuses(lm: LanguageModel, facts: Sequence[Fact]) -> Edit:
        raise EditRefusedError("not today")

    found = measured(lm, tmp_path, way=refuses)
    assert [(point.refused, point.edits) for point in found.curves["way"]] == [(4, 4), (1, 1)]
    assert {point.bits_per_fact() for point in found.curves["way"]} == {(0.0, 0.0, 0.0)}
    json.dumps(found.summary(), allow_nan=False)


def point(count: int, *gains: float) -> Point:
    subjects = tuple(f"person {number}" for number in range(len(gains)))
    return Point(count, subjects, (1.0,) * len(gains), tuple(1 + gain for gain in gains), 1000, 100, 0, 1, 1.0)


BY_HAND = Capacity(
    "m",
    100,
    {"born": 64},
    {
        "falls": (point(1, 4, 4, 4), point(4, 3, 3, 3), point(16, 1, 1, 1)),
        "stays": (point(1, 4, 4, 4), point(4, 4, 5, 6)),
        "nothing": (point(1, 1, -1, 0), point(4, -1, -1, -1)),
    },
)


def test_figures_by_hand(tmp_path: Path) -> None:
    """Half of 4 bits lies halfway from 3 to 1, and halfway from 4 to 16 facts in log2: at 8. 4 x 3 bits of 1000."""
    assert BY_HAND.knee("falls") == pytest.approx((8, 8, 8))
    assert BY_HAND.knee("stays") == (math.inf,) * 3
    assert BY_HAND.knee("nothing") is None
    ways = BY_HAND.summary()["ways"]
    assert ways["falls"]["points"][1]["bits_per_parameter"] == pytest.approx(0.012)
    assert ways["falls"]["points"][1]["load"] == 0.04
    assert ways["stays"]["knee"] == {"facts": None, "low": None, "high": None}
    assert ways["stays"]["points"][1]["bits_per_fact"] == 5
    assert "falls: knee at 8 facts (8 to 8)" in str(BY_HAND.table().caption)
    assert "stays: no knee up to 4 facts" in str(BY_HAND.table().caption)
    BY_HAND.save(tmp_path)
    assert Capacity.load(tmp_path).curves == BY_HAND.curves
    BY_HAND.plot(tmp_path / "capacity.svg")
    assert (tmp_path / "capacity.svg").stat().st_size > 1000


def test_the_first_crossing_counts() -> None:
    assert crossing([1, 2, 4, 8], [4, 1, 4, 0]) == pytest.approx(2 ** (2 / 3))
    assert crossing([1, 2], [4, 2]) == math.inf


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"counts": (4, 1)}, r"job.counts=\[4, 1\] must be numbers of facts, each larger than the last"),
        ({"counts": ()}, r"job.counts=\[\]"),
        ({"ways": ("rome", "rome")}, "names a way twice"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, tuple[int, ...]], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        CapacitySettings(**settings)  # type: ignore[arg-type]


def test_ways_by_name() -> None:
    with pytest.raises(ValueError, match="did you mean rome"):
        way_named("roem", 0)
    with pytest.raises(SettingsError, match="give editor=grace_wide"):
        way_named("grace_wide", 0)
