import pytest

from corrigenda.text.names import model_title


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("smollm2-135m", "smollm2-135m"),
        ("openai-community/gpt2", "openai-community/gpt2"),
        ("/home/me/models/tiny", "tiny"),
        ("/home/me/models/tiny/", "tiny"),
        ("./tiny", "tiny"),
        ("../models/tiny.gguf", "tiny.gguf"),
        ("~/tiny", "tiny"),
        ("my/models/tiny", "tiny"),
        ("C:\\models\\tiny", "tiny"),
        ("C:/models/tiny", "tiny"),
        (".", "."),
        ("/", "/"),
    ],
)
def test_of_a_local_model_the_folder_s_name(name: str, title: str) -> None:
    assert model_title(name) == title
