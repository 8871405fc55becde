import ast
from collections import Counter
from pathlib import Path

import pytest
from mutants import planted


@pytest.mark.parametrize("mutant", planted.mutants(), ids=lambda mutant: mutant.name)
def test_the_text_stands_once_and_the_fault_is_python(mutant: planted.Mutant) -> None:
    text = planted.place_of(mutant).read_text(encoding="utf-8")
    ast.parse(text.replace(mutant.before, mutant.after))


def test_there_are_fifteen_a_package_each_with_a_name_of_its_own() -> None:
    every = planted.mutants()
    assert Counter(Path(mutant.file).parts[0] for mutant in every) == dict.fromkeys(planted.PACKAGES, 15)
    assert len({mutant.name for mutant in every}) == len(every)


def test_a_moved_text_is_found_and_one_that_is_gone_is_named(tmp_path: Path) -> None:
    package = tmp_path / "corrigenda"
    package.mkdir()
    (package / "new.py").write_text("size = 1 + 2\n")
    (package / "other.py").write_text("size = 3\n")
    mutant = planted.Mutant("sum", "a sign", "corrigenda/old.py", "1 + 2", "1 - 2", "corrigenda")
    assert planted.place_of(mutant, tmp_path) == package / "new.py"
    for before, tests, problem in [
        ("4 + 5", "corrigenda", "'4 \\+ 5' stands 0 times in corrigenda/"),
        ("size", "corrigenda", "'size' stands 2 times"),
        ("1 + 2", "tests/none.py", "there is no tests/none.py"),
    ]:
        with pytest.raises(LookupError, match=problem):
            planted.place_of(planted.Mutant("sum", "a sign", "corrigenda/old.py", before, "", tests), tmp_path)


def test_caught_survived_and_gone(tmp_path: Path) -> None:
    (tmp_path / "corrigenda").mkdir()
    (tmp_path / "corrigenda" / "__init__.py").touch()  # else an installed package of that name comes first
    (tmp_path / "corrigenda" / "code.py").write_text("size = 1 + 2\nname = 'a'\n")
    test = "from corrigenda.code import size\n\ndef test_size(): assert size == 3\n"
    (tmp_path / "test_code.py").write_text(test)
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser): parser.addoption('--quick', action='store_true')"
    )
    faults = [("sign", "1 + 2", "1 - 2"), ("name", "'a'", "'b'"), ("gone", "1 * 2", "1 / 2")]
    chosen = [planted.Mutant(name, "", "corrigenda/code.py", *texts, "test_code.py") for name, *texts in faults]
    outcomes = {mutant.name: outcome.word for mutant, outcome in planted.run(chosen, tmp_path, tmp_path)}
    assert outcomes == {"sign": "caught", "name": "survived", "gone": "gone"}
    assert (tmp_path / "corrigenda" / "code.py").read_text() == "size = 1 + 2\nname = 'a'\n"
    (tmp_path / "test_code.py").write_text(test.replace("3", "4"))
    with pytest.raises(ValueError, match=r"fail without any fault: test_code.py::test_size"):
        list(planted.run(chosen, tmp_path, tmp_path))
