import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from jobs.shared.words import flags_last, long_form, program, quote_text


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], []),
        (["editor=rome", "seed=1"], ["editor=rome", "seed=1"]),
        (["-m", "editor=rome,memit"], ["-m", "editor=rome,memit"]),
        (["--help"], ["--help"]),
        (["help"], ["--help"]),
        (["trace", "data=facts"], ["job=trace", "data=facts"]),
        (["mine", "job.times=2"], ["job=mine", "job.times=2"]),
        (["ask", "A city is"], ["job=ask", "job.prompt='A city is'"]),
        (
            ["ask", "1 + 1 = 2, so", "edit=out/a b", "max_new_tokens=5", "model=own"],
            ["job=ask", "job.prompt='1 + 1 = 2, so'", "job.edit='out/a b'", "job.max_new_tokens=5", "model=own"],
        ),
        (["ask", "edit=x", "prompt=a=b"], ["job=ask", "job.edit='x'", "job.prompt='a=b'"]),
        (["ask", "model=own is a setting, and this is none"], None),
        (["ask", "model=own", "prompt=A b"], ["job=ask", "model=own", "job.prompt='A b'"]),
        (["ask", "A", "edit=[a,b]"], ["job=ask", "job.prompt='A'", "job.edit=[a,b]"]),
        (["export", "out/x=1,y", "to=place", "form=adapter"], None),
        (["runs", "store=a,b"], ["job=runs", "store=a,b"]),
    ],
)
def test_spelt_out(given: list[str], expected: list[str] | None) -> None:
    if expected is None:  # the argument after the job's name is a text, whatever is in it
        expected = [f"job={given[0]}", f"job.{'prompt' if given[0] == 'ask' else 'edit'}='{given[1]}'"]
        expected += ["job.to='place'", "job.form=adapter"] if given[0] == "export" else []
    assert long_form(given) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], []),
        (["a=1", "b=-2"], ["a=1", "b=-2"]),
        (["a=1", "--config-dir=x", "b=2"], ["a=1", "b=2", "--config-dir=x"]),
        (["--config-dir", "x=y", "b=2", "-m"], ["b=2", "--config-dir", "x=y", "-m"]),
        (["--cfg", "job", "b=2", "--resolve"], ["b=2", "--cfg", "job", "--resolve"]),
        (["--help", "b=2"], ["b=2", "--help"]),
    ],
)
def test_flags_last(given: list[str], expected: list[str]) -> None:
    assert flags_last(given) == expected


@pytest.mark.parametrize(
    ("called", "expected"),
    [
        ("run.py", "python run.py"),
        ("/x/corrigenda/__main__.py", "python -m corrigenda"),
        ("/x/bin/corrigenda", "corrigenda"),
        ("C:/x/corrigenda.exe", "corrigenda"),
    ],
)
def test_messages_name_the_program_as_it_was_called(
    called: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [called, "ask"])
    assert program() == expected


def read_by_hydra(override: str) -> object:
    """What the configuration then says, with references to other settings followed."""
    found = OverridesParser.create().parse_override(override)
    assert not found.is_sweep_override()
    config = OmegaConf.create({"x": "somewhere else", "text": None})
    OmegaConf.update(config, "text", found.value())
    return OmegaConf.to_container(config, resolve=True)["text"]  # type: ignore[index,call-overload]


@given(st.text(alphabet=st.sampled_from("aZ 0{}[]()'\"\\$=,:.~+@%#\n\té日"), min_size=1) | st.text(min_size=1))
def test_a_text_arrives_as_it_was_given(text: str) -> None:
    if text == "???":
        return  # Hydra's own sign for what has no value
    assert read_by_hydra(f"job.prompt={quote_text(text)}") == text


@pytest.mark.parametrize("text", ["it's", 'say "so"', "a=b, c", "${x}", "\\${x}", "ends with \\", "1", "null", "[a,b]"])
def test_what_means_something_to_hydra_is_a_text(text: str) -> None:
    assert read_by_hydra(f"job.prompt={quote_text(text)}") == text
