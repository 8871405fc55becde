from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from by_hooks import coefficients
from edits_parts import low_rank, origin
from malformed_parts import refused
from moments_parts import TEXT, elsewhere, noted
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from corrigenda import ContextEdit, LanguageModel, LowRankEdit
from corrigenda.data.embedded import held_out_texts, shipped_text
from corrigenda.errors import SettingsError
from corrigenda.forward.generation import bar
from corrigenda.moments import second_moment as statistics
from corrigenda.moments import text as texts
from corrigenda.moments.second_moment import SecondMoment, second_moment
from corrigenda.moments.text import Text
from corrigenda.prompts import encode_plain


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A text file whose words do not all have their turn equally often, in paragraphs of several lengths."""
    paragraphs = [" ".join(tiny.WORDS[(i * k) % len(tiny.WORDS)] for i in range(3 + k)) for k in range(1, 60)]
    path = tmp_path / "words.txt"
    path.write_text("\n\n".join(paragraphs) + "\n\n\n\n", encoding="utf-8")
    return path


def context_edit(lm: LanguageModel) -> ContextEdit:
    return ContextEdit(origin(lm), "the tower . ")


def weight_edit(lm: LanguageModel) -> LowRankEdit:
    return low_rank(lm, 0, {0: 1})


def kept(cache: Path, what: str) -> list[Path]:
    return sorted(path for path in (cache / what).rglob("*") if path.is_file())


def by_hand(lm: LanguageModel, layer: int, sequences: list[list[int]]) -> Tensor:
    """The mean of m m^T, from a hook on the values' module, one token after another, in float64."""
    found = coefficients(lm, layer, *sequences).double()
    return sum((torch.outer(m, m) for m in found), torch.zeros(())) / len(found)


@pytest.mark.parametrize("family", ["bert", "bloom", "gpt2", "llama", "opt", "phi3"])
@pytest.mark.parametrize("layer", [0, -1])
def test_is_the_mean_of_outer_products(family: str, layer: int, file: Path) -> None:
    lm = tiny.build(family)
    text = Text(str(file), tokens=300, length=13)
    moment = second_moment(lm, layer, text)
    expected = by_hand(lm, layer, text.sequences(lm))
    assert moment.matrix.dtype == torch.float64
    torch.testing.assert_close(moment.matrix, expected, atol=1e-6 * float(expected.abs().max()), rtol=1e-4)
    assert torch.equal(moment.matrix, moment.matrix.T)
    assert moment.tokens == 24 * 13  # whole sequences
    assert moment.layer == layer % tiny.DEPTH
    assert moment.text == text


def test_kept_on_disk(lm: LanguageModel, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = second_moment(lm, 2, TEXT)
    assert len(kept(cache, "moments")) == 1
    calls = noted(monkeypatch, lm.model, "forward")
    again = second_moment(lm, -2, TEXT)
    assert torch.equal(again.matrix, first.matrix)
    assert (again.tokens, again.layer, again.text) == (first.tokens, first.layer, first.text)
    with context_edit(lm).applied(lm):  # what is kept is that of the unedited model
        assert torch.equal(second_moment(lm, 2, TEXT).matrix, first.matrix)
    assert not calls


@pytest.mark.parametrize("after", [0, 1, 3, 7, 12])
def test_interrupted_and_resumed(
    after: int, lm: LanguageModel, file: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """13 batches, written down after every third: the same bits as in one go, and none before the mark runs anew."""
    text = Text(str(file), tokens=600, length=12)
    with elsewhere(tmp_path / "other"):
        whole = second_moment(lm, 1, text)
    with monkeypatch.context() as patch:
        noted(patch, statistics, "forward_to", after)
        with pytest.raises(KeyboardInterrupt):
            second_moment(lm, 1, text)
    ran = noted(monkeypatch, statistics, "forward_to")
    resumed = second_moment(lm, 1, text)
    assert len(ran) == 13 - after // 3 * 3
    assert torch.equal(resumed.matrix, whole.matrix)
    assert resumed.tokens == whole.tokens == 600
    (made,) = kept(cache, "moments")  # and no sum half-way
    assert made.suffix == ".safetensors"


def test_other_text_layer_or_weights(lm: LanguageModel, file: Path, cache: Path) -> None:
    other = tiny.build("llama", seed=1)
    base = Text(str(file), tokens=60, length=6)
    cases = [(lm, 1, base), (lm, 2, base), (other, 1, base)]
    cases += [(lm, 1, replace(base, tokens=72)), (lm, 1, replace(base, length=12))]
    cases += [(lm, 1, Text("self", tokens=60, length=6)), (lm, 1, Text("self", tokens=60, length=6, seed=1))]
    cases += [(lm, 1, Text("self", tokens=60, length=6, top_k=3))]
    matrices = [second_moment(*case).matrix for case in cases]
    assert len(kept(cache, "moments")) == len(cases)
    for i, matrix in enumerate(matrices):
        assert not any(torch.equal(matrix, before) for before in matrices[:i])
    file.write_text(file.read_text() + "more")  # another text of the same name
    second_moment(lm, 1, base)
    assert len(kept(cache, "moments")) == len(cases) + 1
    elsewhere = file.with_name("moved.txt")
    elsewhere.write_text(file.read_text())
    second_moment(lm, 1, replace(base, source=str(elsewhere)))  # the same text of another name
    assert len(kept(cache, "moments")) == len(cases) + 1


@pytest.mark.parametrize("make", [weight_edit, context_edit])
def test_not_of_an_edited_model(make: Callable[[LanguageModel], Any], lm: LanguageModel, cache: Path) -> None:
    edit = make(lm)
    with edit.applied(lm):
        of_edited = second_moment(lm, 1, TEXT).matrix
        assert list(lm.edits) == [edit]
    for path in kept(cache, "moments") + kept(cache, "texts"):  # the text is sampled by the unedited model, too
        path.unlink()
    assert torch.equal(of_edited, second_moment(lm, 1, TEXT).matrix)


def test_solve() -> None:
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(30, 20, generator=draw, dtype=torch.float64)
    moment = SecondMoment(rows.T @ rows / 30, 30, 0, TEXT)
    keys = torch.randn(3, 20, generator=draw, dtype=torch.float64)
    ridged = moment.matrix + 1e-2 * torch.eye(20, dtype=torch.float64)
    torch.testing.assert_close(moment.solve(keys, ridge=1e-2), keys @ torch.linalg.inv(ridged))
    torch.testing.assert_close(moment.solve(keys), keys @ torch.linalg.inv(moment.matrix), rtol=1e-3, atol=1e-3)
    single = moment.solve(keys.float(), ridge=1e-2)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), moment.solve(keys, ridge=1e-2), rtol=1e-4, atol=1e-4)


def test_solve_where_the_text_never_went() -> None:
    moment = SecondMoment(torch.diag(torch.tensor([2.0, 0.0], dtype=torch.float64)), 1, 0, TEXT)
    found = moment.solve(torch.tensor([[1.0, 1.0]]), ridge=1e-3)
    torch.testing.assert_close(found, torch.tensor([[1 / 2.001, 1e3]]))


def test_no_progress_bar_off_the_terminal(lm: LanguageModel, capfd: pytest.CaptureFixture[str]) -> None:
    second_moment(lm, 1, TEXT)
    assert tuple(capfd.readouterr()) == ("", "")


def test_text_of_a_file(lm: LanguageModel, file: Path) -> None:
    text = Text(str(file), tokens=100, length=9)
    sequences = text.sequences(lm)
    assert [len(sequence) for sequence in sequences] == [9] * 12
    words = lm.tokenizer(file.read_text(), add_special_tokens=False)["input_ids"]
    assert [token for sequence in sequences for token in sequence] == words[: 12 * 9]
    file.write_text(file.read_text(), encoding="utf-8-sig")  # as some editors save it
    assert text.sequences(lm) == sequences


def test_a_sequence_begins_as_a_prompt_does(file: Path) -> None:
    plain, tokenizer = tiny.build("llama"), tiny.tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    lm = LanguageModel(plain.model, tokenizer, "with-bos")
    written, drawn = Text(str(file), tokens=100, length=9), Text("self", tokens=100, length=9)
    sequences = written.sequences(lm)
    words = encode_plain(tokenizer, file.read_text())
    assert sequences == [[1, *words[begin : begin + 8]] for begin in range(0, 12 * 8, 8)]
    assert drawn.sequences(lm) == [[1, *ids[:8]] for ids in texts.sample(lm, drawn)]
    assert written.key(lm) == f"{written.key(plain)}-after1"  # without a BOS what was kept stays what it is
    expected = by_hand(lm, 1, sequences)
    found = second_moment(lm, 1, written).matrix
    torch.testing.assert_close(found, expected, atol=1e-6 * float(expected.abs().max()), rtol=1e-4)
    refused(SettingsError, "length=1 leaves no room beside the 1 special", Text(tokens=9, length=1).sequences, lm)


def test_file_that_is_too_short(lm: LanguageModel, tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("the tower is in Rome .\n\nthe capital of France")
    assert Text(str(path), tokens=10, length=5).sequences(lm) == [
        lm.tokens("the tower is in Rome"),
        lm.tokens(". the capital of France"),
    ]
    with pytest.raises(ValueError, match=r"short\.txt' has only 10 tokens.*11 were asked for"):
        Text(str(path), tokens=11, length=5).sequences(lm)


def test_the_text_that_ships(caplog: pytest.LogCaptureFixture) -> None:
    lm, text = tiny.build_byte_level(), shipped_text()
    assert len(text.split()) > 170_000
    assert text.isprintable() or set(text) - {"\n"} == {char for char in text if char.isprintable()}
    held_out = {line.strip() for kind in held_out_texts().values() for line in kind.split("\n") if len(line) > 40}
    assert not any(line in text for line in held_out)
    found = Text("shipped", tokens=64, length=16).sequences(lm)
    assert [len(sequence) for sequence in found] == [16] * 4
    assert found[0] == lm.tokenizer(text[:500], add_special_tokens=False)["input_ids"][:16]
    assert Text("shipped").key(lm).startswith("shipped-")
    assert "9000000 were asked for" not in caplog.text
    whole = Text("shipped", tokens=9_000_000, length=64).sequences(lm)
    assert 64 * len(whole) > len(text.split())
    assert "9000000 were asked for" in caplog.text


def test_a_model_that_does_not_know_the_words_is_sampled_from() -> None:
    lm, text = tiny.build("llama"), Text("shipped", tokens=64, length=16)
    assert text.fitting(lm) == replace(text, source="self")
    assert text.sequences(lm) == replace(text, source="self").sequences(lm)
    assert second_moment(lm, 0, text).text.source == "self"
    bytes_known = tiny.build_byte_level()
    assert text.fitting(bytes_known) is text
    assert text.sequences(bytes_known) != replace(text, source="self").sequences(bytes_known)


@pytest.mark.parametrize("source", ["nonsense", "no/such/file.txt", "./nothing.txt", "/nothing", "data/words.txt"])
def test_unknown_source(source: str, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    refused(FileNotFoundError, f"{source}.*neither 'self', nor 'shipped', nor a file", Text(source).sequences, lm)


@pytest.mark.parametrize("source", ["wikitext", "wikipedia", "nobody/nothing"])
def test_hub_out_of_reach(source: str, lm: LanguageModel, no_hub: Path, naps: list[float]) -> None:
    refused(ConnectionError, r"127\.0\.0\.1:9 does not answer.*local", Text(source).sequences, lm)
    assert sum(naps) < 8


def test_hub_text(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[int] = []

    def records(repository: str, split: str, config: str | None) -> Any:
        assert (repository, split, config) == ("Salesforce/wikitext", "train", "wikitext-103-raw-v1")
        for number in range(1000):
            served.append(number)
            yield {"text": "" if number % 2 else "the tower is in Rome . "}

    monkeypatch.setattr("corrigenda.data.repository.hub_records", records)
    assert Text("wikitext", tokens=12, length=6).sequences(lm) == [lm.tokens("the tower is in Rome .")] * 2
    assert len(served) < 5


def test_hub_text_without_its_column(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corrigenda.data.repository.hub_records", lambda *_: iter([{"words": "the"}]))
    refused(ValueError, "somebody/something has no column 'text'", Text("somebody/something").sequences, lm)


def test_sampled_text(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "ROWS", 4)
    text = Text("self", tokens=100, length=10, seed=3)
    sequences = text.sequences(lm)
    assert [len(sequence) for sequence in sequences] == [10] * 10
    assert not {token for sequence in sequences for token in sequence} & set(lm.tokenizer.all_special_ids)
    assert len({tuple(sequence) for sequence in sequences}) == 10
    assert replace(text, seed=4).sequences(lm) != sequences
    assert replace(text, tokens=30).sequences(lm) == sequences[:3]  # the chunks do not depend on their number


def test_sampled_with_tokens_that_the_model_does_not_say(lm: LanguageModel) -> None:
    """A token for padding that was added and never embedded, and -1, which means that there is no end token."""
    lm.tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    assert lm.tokenizer.pad_token_id >= lm.model.get_input_embeddings().weight.shape[0]
    assert len(TEXT.sequences(lm)) == TEXT.n_sequences
    logits = torch.zeros(1, 4)
    assert bar(logits, {-1, 2, 4}).isinf().tolist() == [[False, False, True, False]]


def test_sampled_text_is_the_same_anywhere(lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, calls = TEXT.sequences(lm), noted(monkeypatch, texts, "decode")
    assert TEXT.sequences(lm) == first  # from the disk
    assert not calls
    torch.manual_seed(99)  # global state has no say
    with elsewhere(tmp_path / "other"):
        assert TEXT.sequences(tiny.build("llama")) == first


@pytest.mark.parametrize("after", [0, 1, 2])
def test_sampling_interrupted_and_resumed(
    after: int, lm: LanguageModel, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "ROWS", 4)
    text = Text("self", tokens=96, length=8)
    with elsewhere(tmp_path / "other"):
        whole = text.sequences(lm)
    with monkeypatch.context() as patch:
        noted(patch, texts, "decode", after)
        with pytest.raises(KeyboardInterrupt):
            text.sequences(lm)
    assert len(kept(cache, "texts")) == after
    ran = noted(monkeypatch, texts, "decode")
    assert text.sequences(lm) == whole
    assert len(ran) == 3 - after


def test_sampled_text_follows_the_model(lm: LanguageModel) -> None:
    """With top_k=1 it is the greedy continuation of the opening."""
    start = texts.opening(lm)
    (sequence,) = Text("self", tokens=8, length=8, top_k=1).sequences(lm)
    barred = sorted({*lm.tokenizer.all_special_ids, *lm.end_ids})
    ids = list(start)
    for _ in range(8):
        logits = lm.model(input_ids=torch.tensor([ids])).logits[0, -1]
        logits[barred] = -torch.inf
        ids.append(int(logits.argmax()))
    assert sequence == ids[len(start) :]
