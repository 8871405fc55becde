"""`RetrievalEdit`: which texts stand before a prompt, by brute force; and its encoders."""

import dataclasses
import logging
import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
from edits_parts import drawn, origin
from malformed_parts import refused
from torch import Tensor
from torch.nn.functional import normalize

from corrigenda import EditRefusedError, LanguageModel, RetrievalEdit, WrongModelError
from corrigenda.edits.encoders import encoder_named, text_encoder
from corrigenda.edits.gate import Gate, states_of
from corrigenda.errors import SettingsError
from corrigenda.forward.recording import forward_logits
from corrigenda.indices.kinds import Kind

SUBJECTS = ("Big Ben", "the tower", "Thomas", "tower", "Rome")
TEXTS = tuple(f"{subject} is {number} . " for number, subject in enumerate(SUBJECTS))
NAMES = tuple((subject,) for subject in SUBJECTS)
PROMPTS = (
    "the tower is in",
    "Big Ben is on the river",
    "Thomas speaks of the tower in Rome",
    "the Eiffel tower stands",
)


@pytest.fixture
def gate(lm: LanguageModel) -> Gate:
    return Gate(lm.name, lm.fingerprint, (1, 2), drawn(1, 2 * tiny.WIDTH), (drawn(2, 2 * tiny.WIDTH, 6),), 0.5)


@pytest.fixture
def edit(lm: LanguageModel, gate: Gate) -> RetrievalEdit:
    return RetrievalEdit(origin(lm), TEXTS, NAMES, normalize(drawn(3, 5, 6), dim=1), 0.1, gate=gate)


def scores(lm: LanguageModel, gate: Gate, keys: Tensor, prompt: str) -> list[float]:
    """The cosines of a prompt, by a plain forward."""
    states = states_of(lm, gate.layers, lm.batch([lm.tokenizer(prompt)["input_ids"]])).flatten()
    vector = (states - gate.mean) @ gate.maps[0]
    return (keys @ (vector / vector.norm())).tolist()


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("threshold", [-1.0, 0.1, 0.3])
def test_the_nearest_of_those_that_are_named_the_nearest_last(
    lm: LanguageModel, edit: RetrievalEdit, gate: Gate, k: int, threshold: float
) -> None:
    edit = dataclasses.replace(edit, k=k, threshold=threshold)
    named = {PROMPTS[0]: (1, 3), PROMPTS[1]: (0,), PROMPTS[2]: (1, 2, 3, 4), PROMPTS[3]: (1, 3)}
    found = []
    for prompt, numbers in named.items():
        cosines = scores(lm, gate, edit.keys, prompt)
        near = sorted((cosines[number], TEXTS[number]) for number in numbers if cosines[number] > threshold)[-k:]
        found.append(len(near))
        with edit.applied(lm):
            assert lm.reads(prompt) == "".join(text for _, text in near) + prompt
            assert lm.tokens(prompt) == lm.tokenizer(lm.reads(prompt))["input_ids"]
        assert lm.reads(prompt) == prompt
    assert sum(found) > 0 if threshold < 0.3 else found == [0, 1, 0, 0]


@pytest.mark.parametrize("index", ["exact", "faiss", "product_keys"])
def test_of_all_where_a_prompt_names_none(lm: LanguageModel, gate: Gate, index: Kind) -> None:
    """And need not; the index filters, and this few keys are all looked at."""
    texts = tuple(f"nobody {number}" for number in range(400))
    names = tuple((text,) for text in texts)
    keys = normalize(drawn(4, 400, 6), dim=1)
    edit = RetrievalEdit(origin(lm), texts, names, keys, -1.0, 3, False, gate=gate, index=index)
    cosines = torch.tensor(scores(lm, gate, keys, "one two three"))
    assert edit.near(lm, "one two three") == cosines.topk(3).indices.tolist()
    assert dataclasses.replace(edit, by_subject=True).near(lm, "one two three") == []
    own = dataclasses.replace(edit, names=(("nobody", "one two", "two three"), *names[1:]))
    assert own.near(lm, "one two three") == [0]


def test_a_prompt_is_about_whom_its_last_sentence_names(lm: LanguageModel, edit: RetrievalEdit) -> None:
    edit = dataclasses.replace(edit, threshold=-1.0, k=5)
    wanted = edit.near(lm, PROMPTS[1])
    assert edit.near(lm, f"{PROMPTS[1]} Paris. Oslo is in") == []
    assert edit.near(lm, f"{PROMPTS[1]} old. It is in") == wanted == edit.near(lm, f"Oslo is old. {PROMPTS[1]}")
    for before, after in (("[INST] ", " [/INST]"), ("<|USER|>\n", "</s>\n### Response:\n")):
        assert edit.near(lm, f"{before}{PROMPTS[1]}{after}") == wanted


def test_a_prompt_is_as_near_as_its_question_without_what_asks_nothing(
    lm: LanguageModel, edit: RetrievalEdit, gate: Gate
) -> None:
    question, prompt = "Thomas speaks of the tower in Rome", "Thomas speaks of the tower in Rome :"
    read, bare = (scores(lm, gate, edit.keys, text)[1:] for text in (prompt, question))
    best = {number: max(pair) for number, pair in enumerate(zip(read, bare, strict=True), 1)}
    assert min(map(float.__sub__, bare, read)) < 0 < max(map(float.__sub__, bare, read))
    for n, low in enumerate(sorted(best.values(), reverse=True), 1):
        near = dataclasses.replace(edit, threshold=low - 1e-4, k=5).near(lm, prompt)
        assert near == sorted(best, key=lambda number: -best[number])[:n]
    nearest = max(best, key=lambda number: best[number])
    assert dataclasses.replace(edit, threshold=-1.0, k=1).near(lm, prompt) == [nearest]


def test_other_prompts_are_read_to_the_bit(lm: LanguageModel, edit: RetrievalEdit) -> None:
    """Alone and in a batch with one that has a statement before it, in a forward and in text that is generated."""
    edit = dataclasses.replace(edit, threshold=-1.0)
    others = ["Danielle speaks", "the river is in the north of"]

    def logits() -> Tensor:
        batch = lm.batch([lm.tokens(prompt) for prompt in others])
        return forward_logits(lm, batch, batch.lengths - 1)

    before, said = logits(), lm.generate(others, 8)
    with edit.applied(lm):
        assert lm.reads("Big Ben is in") == "Big Ben is 0 . Big Ben is in"
        assert torch.equal(logits(), before)
        assert lm.generate(others, 8) == said
        assert lm.generate([*others, "Big Ben is in"], 8)[:2] == said


def test_a_prompt_that_names_nothing_is_not_encoded(edit: RetrievalEdit) -> None:
    nothing: Any = None  # no model is asked
    assert edit.before(nothing, "Danielle speaks") == ""


@pytest.mark.parametrize(
    ("values", "error", "match"),
    [
        ({"texts": TEXTS[1:]}, ValueError, r"4 texts, names of 5 subjects and keys of the shape \(5, 6\)"),
        ({"threshold": 1.5}, ValueError, r"threshold=1.5 must be a cosine"),
        ({"k": 0}, ValueError, "k=0 at least 1"),
        ({"keys": torch.full((5, 6), torch.nan)}, EditRefusedError, "retrieval edit is not finite"),
    ],
)
def test_what_does_not_fit(edit: RetrievalEdit, values: dict[str, Any], error: type[Exception], match: str) -> None:
    refused(error, match, dataclasses.replace, edit, **values)


def test_another_model(lm: LanguageModel, edit: RetrievalEdit) -> None:
    deeper = dataclasses.replace(edit.gate, layers=(1, 9))
    with pytest.raises(WrongModelError, match=r"gate reads layers \[1, 9\] of states of 32 numbers; tiny-llama has 4"):
        dataclasses.replace(edit, gate=deeper).apply(lm)


# -- encoders that read no model


@pytest.fixture
def sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of sentence-transformers: a text's counts of a few letters."""

    def made(name: str, device: str) -> Any:
        if name == "no-model":
            raise OSError("no-model is not a local folder\nand more")

        def encode(texts: list[str]) -> list[list[float]]:
            return [[float(text.count(letter)) for letter in "aeio"] for text in texts]

        return SimpleNamespace(encode=encode)

    module: Any = ModuleType("sentence_transformers")
    module.SentenceTransformer = made
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    text_encoder.cache_clear()


def test_a_model_of_sentence_transformers(lm: LanguageModel, sentences: None) -> None:
    encode = encoder_named("some-model", None)
    torch.testing.assert_close(encode(lm, ["aab e", "io"]), normalize(torch.tensor([[2.0, 1, 0, 0], [0, 0, 1, 1]])))
    edit = RetrievalEdit(origin(lm), TEXTS, NAMES, normalize(drawn(3, 5, 4), dim=1), -1.0, encoder="some-model")
    with edit.applied(lm):
        assert lm.reads("Big Ben is in") == f"{TEXTS[0]}Big Ben is in"
    other = dataclasses.replace(edit, keys=normalize(drawn(3, 5, 3), dim=1))
    refused(WrongModelError, "keys have 3 numbers, and its encoder 'some-model' gives 4", other.apply, lm)
    with pytest.raises(SettingsError, match=r"encoder=no-model: neither .* \(no-model is not a local folder\)$"):
        encoder_named("no-model", None)


def test_a_package_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    text_encoder.cache_clear()
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    refused(ImportError, r"encoder=some: .*pip install sentence-transformers", text_encoder, "some")
    monkeypatch.setattr("corrigenda.edits.encoders.find_spec", lambda name: None)
    refused(ImportError, r"pip install 'corrigenda\[retrieval\]'", text_encoder, "wordllama")
    refused(SettingsError, "no gate", encoder_named, "states", None)


def test_wordllama_has_its_weights_with_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is fetched, and the logging of others stays as it is."""

    def fetched(*_: Any, **__: Any) -> Any:
        raise AssertionError("something was fetched")

    text_encoder.cache_clear()
    monkeypatch.setattr("requests.get", fetched)
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    embed = text_encoder("wordllama")
    assert (root.level, list(root.handlers)) == before
    texts: Sequence[str] = ["The Eiffel Tower is in", "The Eiffel Tower stands in", "My sister plays the piano"]
    cosines = embed(texts) @ embed(texts).T
    torch.testing.assert_close(cosines.diag(), torch.ones(3))
    assert cosines[0, 1] > 0.8 > 0.5 > cosines[0, 2]
