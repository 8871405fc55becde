import pytest
from composed import composed
from omegaconf import OmegaConf

from jobs.shared.help import help_on
from jobs.shared.registry import classes


def described(capsys: pytest.CaptureFixture[str], what: str) -> tuple[str, dict[str, str]]:
    """What is said above the table, and the default of each setting in it."""
    assert help_on(["help", what])
    said = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")] for line in said.splitlines() if line.startswith("│")]
    return said, {row[1]: row[2] for row in rows if row[1]}


def test_an_editor_is_described_with_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    said, defaults = described(capsys, "editor=grace_wide")
    assert said.startswith("grace_wide: grace with other settings\nHartvigsen")
    assert defaults["editor.widen"] == "2.0"  # the preset's, where the class has 1
    assert defaults["editor.text.source"] == "shipped"


def leaves(part: object, place: str) -> set[str]:
    """The dotted names of all settings of a configuration."""
    if not isinstance(part, dict):
        return set() if place.endswith(("._target_", "job.name")) else {place}
    return {leaf for key, value in part.items() for leaf in leaves(value, f"{place}.{key}")}


@pytest.mark.parametrize("name", ["full", "probabilities", "real_use", "side_effects"])
def test_what_is_measured_is_described_as_its_configuration_has_it(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    said, defaults = described(capsys, f"eval={name}")
    config = OmegaConf.to_container(composed(f"eval={name}").eval)
    assert said.startswith(f"{name}: ")
    assert leaves(config, "eval") <= set(defaults)
    assert defaults["eval.generate"] == str(config["generate"]).lower()
    assert defaults["eval.side_effects"] == str(config["side_effects"]).lower()
    assert defaults["eval.seed"] == "${seed}"


@pytest.mark.parametrize("name", classes())
def test_a_job_is_described_with_all_that_its_configuration_has(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    said, defaults = described(capsys, f"job={name}")
    assert said.startswith(f"{name}: ")
    assert leaves(OmegaConf.to_container(composed(f"job={name}").job), "job") <= set(defaults)
    if name == "trace":
        assert (defaults["job.facts"], defaults["job.locator.site"]) == ("3", "ffn")  # the class has block
    if name == "leaderboard":
        assert (defaults["job.folder"], defaults["add"]) == ("${store}", "null")


def test_what_is_not_asked_is_not_answered(capsys: pytest.CaptureFixture[str]) -> None:
    assert not help_on(["help"])
    assert not help_on(["editor=rome"])
    for asked, nearest in (("editor=roem", "rome"), ("job=trcae", "trace"), ("eval=ful", "full")):
        with pytest.raises(ValueError, match=f"did you mean {nearest}"):
            help_on(["help", asked])
    assert capsys.readouterr().out == ""
