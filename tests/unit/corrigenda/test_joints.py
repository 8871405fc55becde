"""What stands between a prompt and its answer, by hand."""

from __future__ import annotations

import pytest

from corrigenda.joints import joint


@pytest.mark.parametrize(
    ("prompt", "target"),
    [
        ("The Eiffel Tower is in the city of", "Rome"),
        ("She said:", "yes"),
        ("1, 2,", "3"),
        ('He called it "home"', "again"),
        ("**Capital**", "Paris"),
        ("the dogs'", "owner"),
        ("It costs 5 €", "more"),
        ("Qt is written in C++ and not in C#", "today"),
        ("The temperature is", "-5"),
        ("He wrote for", ".NET"),
        ("The path is", "/usr/bin"),
        ("either /", "or"),
        ("2 +", "2"),
        ("x =", "5"),
        ("프랑스의 수도는", "파리"),  # Korean writes spaces between words
        ("The capital of China, in Chinese letters, is", "北京"),
        ("A face:", "🙂"),
        ("of the city (Paris)", "Rome"),
        ("O'Brien plays the", "harp"),
        ("J'ai vu", "Paris"),
    ],
)
def test_a_space(prompt: str, target: str) -> None:
    assert joint(prompt, target) == " "


@pytest.mark.parametrize(
    ("prompt", "target"),
    [
        ("<|im_start|>assistant\n", "Paris"),
        ("def f():\n    ", "return 42"),
        ("中国的首都是", "北京"),
        ("埃菲尔铁塔所在的城市是", "Paris"),
        ("苹果公司的手机叫 iPhone", "手机"),
        ("日本の首都は", "東京"),
        ("เมืองหลวงของไทยคือ", "กรุงเทพ"),
        ("答案：", "42"),
        ("The city (", "Paris"),
        ("He said “", "yes"),
        ('He said "', "yes"),
        ('{"city": "', "Paris"),
        ('name="', "x"),
        ("print('", "x"),
        ("The answer is **", "Rome"),
        ("run `", "ls"),
        ("It costs $", "30"),
        ("It costs US$", "30"),
        ("¿", "Quién"),
        ("write to me@", "example.com"),
        ("La capitale de l'", "Allemagne"),
        ("la capitale d’", "Italie"),
        ("capitale dell'", "Italia"),
        ("anti-", "hero"),
        ("https://", "example.com"),
        ("and/", "or"),
        ("issue #", "5"),
        ("x=", "5"),
        ("snake_", "case"),
        ("He plays", ", too"),
        ("(it is in Rome", ")"),
        ("at 30", "%"),
        ("It stops", "."),
        ("def f():", "\n    return 42"),
        ("The city of", " Rome"),
        ("", "Rome"),
    ],
)
def test_nothing(prompt: str, target: str) -> None:
    assert joint(prompt, target) == ""
