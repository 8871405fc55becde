import random

import pytest
import tiny
import torch
from by_hooks import entering
from malformed_parts import refused
from prompts_parts import SHARING, TOLERANCE, assert_equal_recordings, distance, framed
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from corrigenda import ContextEdit, LanguageModel, Origin
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import record
from corrigenda.forward.shared import record_shared
from corrigenda.prompts import (
    encode,
    encode_plain,
    encode_target,
    goes_on,
    pad,
    put_before,
    shared_heads,
    specials,
    subject_span,
)
from corrigenda.text.joints import joint


def test_prompt_without_a_token() -> None:
    refused(ValueError, "'' has no token", encode, tiny.tokenizer(), "")
    assert encode(framed(), "") == [1, 2]


@pytest.mark.parametrize("target", ["Paris", "Big Ben", "the city of Rome"])
@pytest.mark.parametrize("make", [tiny.tokenizer, framed])
def test_target_goes_on_from_the_prompt(make: type[PreTrainedTokenizerBase], target: str) -> None:
    tokenizer, prompt = make(), "the tower is in"
    ids = encode_target(tokenizer, prompt, target)
    assert encode_plain(tokenizer, prompt) + ids == encode_plain(tokenizer, f"{prompt} {target}")
    assert not set(ids) & set(tokenizer.all_special_ids)
    assert encode_target(tokenizer, prompt, f"  {target}") == ids


def test_target_that_merges_with_the_prompt() -> None:
    vocabulary = {"s": 0, " ": 1, "R": 2, "s ": 3}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE(vocabulary, [("s", " ")])))
    assert encode_plain(tokenizer, "s R") == [3, 2]
    assert encode_target(tokenizer, "s", "R") == [1, 2]


@pytest.mark.parametrize("target", ["", "  "])
def test_empty_target(target: str) -> None:
    refused(ValueError, "empty target for the prompt 'the tower'", encode_target, tiny.tokenizer(), "the tower", target)


def test_pad() -> None:
    batch = pad([[5, 6, 7], [8]], pad_id=9)
    assert batch.input_ids.tolist() == [[5, 6, 7], [8, 9, 9]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert len(batch) == 2
    short = batch.rows(torch.tensor([1, 1]))
    assert short.input_ids.tolist() == [[8], [8]]
    assert short.lengths.tolist() == [1, 1]


@pytest.mark.parametrize("sequences", [[], [[]], [[1, 2], []]])
def test_pad_nothing(sequences: list[list[int]]) -> None:
    refused(ValueError, "at least one", pad, sequences, pad_id=0)


def test_subject_at_a_place_that_is_known() -> None:
    prompt = "Paris is in France , and Paris is the capital"
    assert subject_span(tiny.tokenizer(), prompt, "Paris", 0) == (0, 1)
    refused(ValueError, "does not stand", subject_span, tiny.tokenizer(), prompt, "Paris", 3)
    with pytest.raises(ValueError, match=f"'Rome' does not stand in the prompt '{prompt}'"):
        subject_span(tiny.tokenizer(), prompt, "Rome")


HEADS: dict[str, tuple[str, list[int], str, list[int]]] = {
    # One question after three prefixes and one that is like no other: the order does not matter.
    "prefixes": ("12345 99 1237 12346", [4, 1, 3, 4], "123", [3, 0, 3, 3]),
    "a limit": ("1234 1235", [3, 2], "12", [2, 2]),
    "a limit of nothing": ("1234 1235", [3, 0], "", [0, 0]),
    "not cut for one more row": ("123456 123457 18", [5, 5, 1], "12345", [5, 5, 0]),
    "cut for a longer row": ("123456 123457 1238", [5, 5, 3], "123", [3, 3, 3]),
    "nothing": ("12 22 3", [2, 2, 1], "", [0, 0, 0]),
}
"""Sequences of tokens of one digit, where heads may end, the head that is shared, and how much of it each row has."""


@pytest.mark.parametrize("name", HEADS)
def test_shared_heads(name: str) -> None:
    rows, limits, shared, lengths = HEADS[name]
    heads, head_of, found = shared_heads([[*map(int, row)] for row in rows.split()], limits)
    assert (heads, found) == ([[*map(int, head)] for head in shared.split()], lengths)
    assert all(head == 0 for head, length in zip(head_of, lengths, strict=True) if length)


def test_shared_heads_of_random_sequences() -> None:
    for seed in range(200):
        draw = random.Random(seed)
        letters, n = draw.choice([1, 2, 3, 8]), draw.randint(1, 9)
        sequences = [[draw.randrange(letters) for _ in range(draw.randint(1, 7))] for _ in range(n)]
        limits = [draw.randint(0 if seed % 2 else 1, len(sequence)) for sequence in sequences]
        heads, head_of, lengths = shared_heads(sequences, limits)
        for sequence, limit, head, length in zip(sequences, limits, head_of, lengths, strict=True):
            assert length <= limit
            assert length == 0 or sequence[:length] == heads[head]
        total = sum(map(len, heads)) + sum(len(s) - length for s, length in zip(sequences, lengths, strict=True))
        assert total <= sum(map(len, sequences))
        if min(limits) > 0 and len({sequence[0] for sequence in sequences}) < n:  # two begin alike
            assert total < sum(map(len, sequences))


@pytest.mark.parametrize("family", ["gemma2", "gpt_neo", "opt"])
def test_shared_recording_within_limits(family: str) -> None:
    lm = tiny.build(family)
    batch = lm.batch(SHARING["two heads and a loner"])
    limit = torch.tensor([4, 2, 0, 6, 3])
    forward = record_shared(lm, batch, layers=[1], limit=limit)
    assert forward.start.tolist() == [4, 2, 0, 4, 2]
    at = torch.arange(batch.input_ids.shape[1]) >= limit[:, None]
    at &= batch.attention_mask.bool()
    assert_equal_recordings(forward.record([1], at), record(lm, batch, [1], at))


def test_shared_tokens_run_once(lm: LanguageModel) -> None:
    rows = SHARING["two heads and a loner"]
    with entering(lm.architecture.block(0)) as ran:
        record_shared(lm, lm.batch(rows), layers=[]).record([])
    # Two heads; of each row what is its own, the loner's four tokens the most.
    assert [states.shape[:2] for states in ran] == [(2, 7), (5, 4)]


def test_partial_forward_from_a_shared_recording() -> None:
    lm = tiny.build("qwen3")
    batch = lm.batch(SHARING["two heads and a loner"])
    start = torch.tensor([2, 3, 1, 7, 0])
    shared = record_shared(lm, batch, layers=[2]).record([2])
    found = PartialForward(lm, shared, 2, start).logits()
    expected = PartialForward(lm, record(lm, batch, [2]), 2, start).logits()
    for row, length in enumerate((batch.lengths - start).tolist()):
        assert distance(found[row, :length].log_softmax(-1), expected[row, :length].log_softmax(-1)) < TOLERANCE


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_masked_model_shares_nothing() -> None:
    lm = tiny.build("bert")
    batch = lm.batch(SHARING["one head"])
    found = record_shared(lm, batch, layers=[2]).record([2], batch.lengths - 1)
    assert_equal_recordings(found, record(lm, batch, [2], batch.lengths - 1))


def test_only_whole_rows_are_recorded(lm: LanguageModel) -> None:
    batch = lm.batch(SHARING["one head"])
    partial = PartialForward(lm, record(lm, batch, [2]), 2, torch.tensor([1, 1, 1]))
    refused(ValueError, "starts at 2", partial.record, [2])


def test_no_prompt_ends_in_an_end_token() -> None:
    plain, tokenizer = tiny.tokenizer(), framed()
    bos, eos = tokenizer.convert_tokens_to_ids(["<s>", "</s>"])
    ids = plain("Paris is in")["input_ids"]
    open_ended = goes_on(tokenizer)
    assert encode(open_ended, "Paris is in") == [bos, *ids]
    assert encode(tokenizer, "Paris is in") == [bos, *ids, eos]
    assert specials(open_ended) == [bos]
    assert goes_on(plain) is plain
    lm = LanguageModel(tiny.build("llama").model, tokenizer, "x")
    assert lm.tokens("Paris is in") == [bos, *ids]
    assert LanguageModel(lm.model, lm.tokenizer, "x").tokens("Paris is in") == [bos, *ids]


def test_no_second_bos() -> None:
    tokenizer = goes_on(framed())
    bos = tokenizer.convert_tokens_to_ids("<s>")
    ids = tiny.tokenizer()("Paris is in")["input_ids"]
    assert encode(tokenizer, "<s> Paris is in") == [bos, *ids] == encode(tokenizer, "Paris is in")
    assert (
        subject_span(tokenizer, "<s> Paris is in", "Paris") == (1, 2) == subject_span(tokenizer, "Paris is in", "Paris")
    )


def with_dummy_prefix() -> PreTrainedTokenizerFast:
    """As SentencePiece: "▁" for a space, and one put before every text; it merges "是北" and "▁R"."""
    signs = ["<unk>", "▁", "是", "北", "京", "R", "o", "(", ".", "是北", "▁R"]
    model = BPE({sign: n for n, sign in enumerate(signs)}, [("是", "北"), ("▁", "R")], unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always", split=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


@pytest.mark.parametrize("target", ["Paris", "\n    return 42", "北京", " Rome", "42", ")"])
@pytest.mark.parametrize(
    "prompt",
    [
        *("The capital of France is", "<|im_start|>assistant\n", "def f():", "def f():\n    ", "中国的首都是"),
        *("the city (", 'He said "', "它叫「", "costs $"),
    ],
)
def test_tokens_say_prompt_joint_and_target(prompt: str, target: str) -> None:
    tokenizer = tiny.byte_level()
    ids = encode(tokenizer, prompt) + encode_target(tokenizer, prompt, target)
    assert tokenizer.decode(ids) == prompt + joint(prompt, target) + target
    forced = encode(tokenizer, prompt) + encode_target(tokenizer, prompt, target, "\t")
    assert tokenizer.decode(forced) == f"{prompt}\t{target}"


@pytest.mark.parametrize(
    ("prompt", "target", "signs"),
    [
        ("是", "北京", ["北", "京"]),  # merged across the border, and no dummy prefix of its own
        ("是 (", "Ro", ["R", "o"]),
        ("Ro", "Ro", ["▁R", "o"]),
        ("是", " Ro", ["▁R", "o"]),
    ],
)
def test_a_dummy_prefix_is_no_part_of_a_target(prompt: str, target: str, signs: list[str]) -> None:
    tokenizer = with_dummy_prefix()
    assert tokenizer.convert_ids_to_tokens(encode_target(tokenizer, prompt, target)) == signs


def test_an_encoder_decoder_begins_with_the_target() -> None:
    tokenizer = tiny.build("t5").parts.with_beginning(tiny.byte_level())  # type: ignore[union-attr]
    for target, said in {"Paris": "Paris", " Paris": "Paris", "\n  x": "\n  x"}.items():
        assert tokenizer.decode(encode_target(tokenizer, "The capital is", target)) == said


def test_what_is_put_before_a_prompt_stands_behind_its_bos() -> None:
    tokenizer = goes_on(framed())
    assert put_before(tokenizer, "Rome. ", "<s> Paris is in") == "<s>Rome.  Paris is in"
    assert put_before(tokenizer, "", "<s> Paris is in") == "<s> Paris is in"
    assert put_before(tokenizer, "Rome. ", "Paris is in") == "Rome. Paris is in"
    # A template's own opening is none, where the tokenizer puts nothing before a text.
    assert put_before(tiny.tokenizer(), "Rome. ", "<s> Paris is in") == "Rome. <s> Paris is in"
    lm = LanguageModel(tiny.build("llama").model, framed(), "x")
    wanted = lm.tokens("the city . Paris is in")
    with ContextEdit(Origin("x", lm.fingerprint, "x"), "the city . ").applied(lm):
        assert lm.tokens("<s> Paris is in") == lm.tokens("Paris is in") == wanted


def test_no_second_opening_of_several_tokens() -> None:
    tokenizer = tiny.tokenizer()
    post = TemplateProcessing(single="<pad> <s> $A", special_tokens=[("<pad>", 0), ("<s>", 1)])
    tokenizer.backend_tokenizer.post_processor = post
    tokenizer.bos_token = None
    ids = tiny.tokenizer()("the the tower")["input_ids"]
    assert encode(tokenizer, "<pad><s>the the tower") == [0, 1, *ids] == encode(tokenizer, "the the tower")
    assert encode(tiny.tokenizer(), "the the tower") == ids
    assert encode(tokenizer, "<pad><s>") == [0, 1]


def test_a_subject_that_the_tokenizer_leaves_out() -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("Rome", "")
    assert subject_span(tokenizer, "Paris is not Rome", "Paris") == (0, 1)
    with pytest.raises(ValueError, match="'Rome' has no token in 'the city of Rome': the tokenizer leaves it out"):
        subject_span(tokenizer, "the city of Rome", "Rome")


def test_a_subject_in_a_prompt_that_the_tokenizer_writes_anew() -> None:
    tokenizer = tiny.tokenizer()
    names = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(names)
    assert subject_span(tokenizer, "the ﬁrst CITÝ of Two Ｔhree in", "Two Ｔhree") == (4, 6)
