import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from malformed_parts import refused

from corrigenda.system.plain_data import json_value, read_json, read_yaml, yaml_text, yaml_value

TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(
        ["1e-4", "1_000", "yes", "~", "<<", "=", "2026-01-01", "1:30", "0x1", ".5", "- a", "${x}", "!!int 1"]
    ),
)
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**63), st.floats(allow_nan=False, allow_infinity=False), TEXTS
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)


@given(VALUES)
def test_values_come_back(value: Any) -> None:
    for back in (yaml_value(yaml_text(value)), json_value(json.dumps(value)), json_value(json.dumps(value).encode())):
        assert repr(back) == repr(value)


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("read", "text", "problem"),
    [
        (json_value, "[" * 100_000 + "]" * 100_000, "nested too deeply"),
        (json_value, '{"a":' * 100_000 + "1" + "}" * 100_000, "nested too deeply"),
        (json_value, "[" * 60 + "]" * 60, "nested more than 50 deep"),
        (json_value, '{"a": [NaN]}', r"a\[0\] is no finite number \(nan\)"),
        (json_value, '{"a": -Infinity}', r"a is no finite number \(-inf\)"),
        (json_value, '{"a": 1e999}', r"a is no finite number \(inf\)"),
        (json_value, '{"a": ' + "9" * 100_000 + "}", "a is a number of 100000 digits"),
        (json_value, '{"a": 99999999999999999999}', "a is a number of 67 bits"),
        (json_value, '{"a": {"b": 1, "b": 2}}', r"a\.b stands twice"),
        (json_value, '{"a": "\\ud800"}', "a holds half of a character"),
        (json_value, '{"\\ud800": 1}', "has a key that holds half of a character"),
        (json_value, b'{"a": "\xff"}', "can't decode byte 0xff"),
        (json_value, "{", "Expecting"),
        (yaml_value, BOMB, "not YAML .it has an alias, which is not followed, line 2"),
        (yaml_value, "[" * 100_000, "nested too deeply"),
        (yaml_value, "- " * 100_000, "nested too deeply"),
        (yaml_value, "[" * 60 + "]" * 60, "nested more than 50 deep"),
        (yaml_value, "a: .nan", "a is no finite number"),
        (yaml_value, "a: 1e999", "a is no finite number"),
        (yaml_value, "a: " + "9" * 100_000, "a is a number of 100000 digits"),
        (yaml_value, "a: 1\na: 2", "the key 'a' stands twice, line 2"),
        (yaml_value, "1: a", "has the key 1, which is no text"),
        (yaml_value, "[a]: 1", "a key is no text"),
        (yaml_value, 'a: "\\ud800"', "a holds half of a character"),
        (yaml_value, "a: !!python/object/apply:os.system [x]", "could not determine a constructor"),
        (yaml_value, "a: !!set {b}", "a is no plain value .set"),
        (yaml_value, "a: !!int ''", "not YAML of plain values"),
        (yaml_value, "a: b: c", "mapping values are not allowed here, line 1"),
        (yaml_value, "\0", "not YAML"),
    ],
)
def test_what_is_refused(read: Any, text: Any, problem: str) -> None:
    refused(ValueError, problem, read, text)


def test_numbers_as_in_a_configuration() -> None:
    assert yaml_value("a: 1e-4\nb: 2026-01-01\nc: 1.5\nd: '1e-4'") == {
        "a": 1e-4,
        "b": "2026-01-01",
        "c": 1.5,
        "d": "1e-4",
    }


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(2**40)  # of holes: it takes no place
    for read in (read_json, read_yaml):
        refused(ValueError, r"has 1,099,511,627,776 bytes; at most", read, path, most=2**10)
    refused(ValueError, r"at most 131,072 are read", read_yaml, path)
