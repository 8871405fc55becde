import json
from pathlib import Path

import pytest
import tiny
import torch
from public_reports import bytes_in_pairs, log_probs, model, pieces, reading, rome, wrapped
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import ByT5Tokenizer

from corrigenda import Fact, LanguageModel, load
from corrigenda.prompts import encode, encode_plain, encode_target, subject_span
from editing.locate_then_edit.prompts import build_prompts
from eval import EvalSettings, measure
from eval.scoring.probabilities import score
from locate.lens.logit_lens import logit_lens
from locate.question import UnknownFactError, ask

PROMPT = "the Eiffel tower is located in the city of"
SOME = " ".join(tiny.WORDS) + " the city of 北京 and 東京 , a naïve café 😀 tower ."


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
def test_the_space_that_sentencepiece_puts_before_a_text(scheme: str) -> None:
    """huggingface/transformers#29625, #28622, EasyEdit#302: a target encoded alone gets another first token, or a lone
    space before it."""
    tokenizer = pieces(scheme)
    ids, target = encode(tokenizer, PROMPT), encode_target(tokenizer, PROMPT, "Rome and Paris")
    assert tokenizer.convert_ids_to_tokens(target) == ["▁Rome", "▁and", "▁Paris"]
    assert ids + target == tokenizer(f"{PROMPT} Rome and Paris")["input_ids"]
    lm = reading(tokenizer)
    [[scored]] = [found.targets for found in score(lm, [(PROMPT, ["Rome and Paris"])])]
    assert scored.log_probs == pytest.approx(log_probs(lm, ids + target, len(ids)), abs=1e-5)


def test_a_tokenizer_without_a_beginning_token_loses_none() -> None:
    """TransformerLens#1628: the first token was taken for the beginning token and dropped."""
    tokenizer = tiny.tokenizer()
    tokenizer.bos_token = None
    lm = LanguageModel(model(), tokenizer, "tiny")
    assert len(lm.tokens(PROMPT)) == len(PROMPT.split())
    fact = Fact("the Eiffel tower", "{} is located in the city of", "Rome")
    assert ask(lm, fact, "Rome").subject == (0, 3)


@pytest.mark.parametrize("subject", ["北京", "café", "naïve café", "😀 tower"])
@pytest.mark.parametrize("template", ["the city of {} is in", "{} is in", "by {} , {} again"])
def test_a_character_in_several_tokens(subject: str, template: str) -> None:
    """huggingface/tokenizers#156, #663: offsets of a character that is split into bytes, and of what follows."""
    tokenizer = bytes_in_pairs([SOME])
    prompt = template.replace("{}", subject)
    first, last = subject_span(tokenizer, prompt, subject, template.index("{}"))
    ids = tokenizer(prompt)["input_ids"]
    assert tokenizer.decode(ids[first:last]).strip() == subject
    assert tokenizer.decode(ids[:last]) == prompt[: template.index("{}") + len(subject)]


def test_a_space_with_the_place_of_the_character_after_it() -> None:
    """huggingface/tokenizers#1775, #1018: the token of a space has the offsets of the character that follows it."""
    words = Tokenizer(models.Unigram([(word, -1.0) for word in ("<unk>", "▁", "北京", "▁is", "▁in")], unk_id=0))
    words.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer = wrapped(words)
    ids = tokenizer("北京 is in")["input_ids"]
    _, end = subject_span(tokenizer, "北京 is in", "北京")
    assert tokenizer.convert_ids_to_tokens(ids[:end]) == ["▁", "北京"]


@pytest.mark.parametrize("prompt", ["Otto is in", "the café of 北京 is in", "by Otto , 北京 plays"])
def test_a_tokenizer_without_offsets(prompt: str) -> None:
    """zjunlp/EasyEdit#390: with a slow tokenizer the subject's last token was another one."""
    tokenizer = ByT5Tokenizer()
    assert not tokenizer.is_fast
    subject = "北京" if "北京" in prompt else "Otto"
    first, last = subject_span(tokenizer, prompt, subject)
    assert tokenizer.decode(encode(tokenizer, prompt)[first:last]).strip() == subject
    assert encode_target(tokenizer, prompt, "Oslo") == [byte + 3 for byte in b" Oslo"]


def test_truncation_that_was_saved_with_the_tokenizer(tmp_path: Path) -> None:
    """elixir-nx/tokenizers#46, daulet/tokenizers#30: tokenizer.json holds a truncation and a padding, and texts are cut
    and filled up without a word."""
    tokenizer = tiny.tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(4)
    tokenizer.backend_tokenizer.enable_padding(length=12)
    model().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "tokenizer.json").read_text())["truncation"]["max_length"] == 4
    lm = load(tmp_path)
    assert lm.tokens(PROMPT) == encode_plain(lm.tokenizer, PROMPT) == tiny.tokenizer()(PROMPT)["input_ids"]
    assert len(encode_target(lm.tokenizer, PROMPT, "Big Ben , London and the river")) == 7


def test_more_embeddings_than_tokens() -> None:
    """QwenLM/Qwen#553: the model has rows for tokens that the tokenizer does not know; here it says one of them."""
    made = model(vocab_size=200)
    made.lm_head.weight.data[150] *= 20
    lm = LanguageModel(made, tiny.tokenizer(), "tiny")
    assert lm.generate("the tower is", 3) == ""
    grid = logit_lens(lm, "the tower is", token="Rome")
    assert int(grid.top_ids[-1, -1]) == 150
    assert len(grid.words[-1]) == 3


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
def test_the_space_between_a_prompt_and_its_continuation(scheme: str) -> None:
    """huggingface/transformers#22710: what a Llama says after a prompt comes without the space before it."""
    tokenizer = pieces(scheme)
    made = model(vocab_size=len(tokenizer))
    for word in ("▁Rome", "Rome"):
        lm = LanguageModel(made, tokenizer, "tiny")
        state = lm.model.model(input_ids=torch.tensor([lm.tokens("the city of")])).last_hidden_state[0, -1]
        made.lm_head.weight.data[tokenizer.convert_tokens_to_ids(word)] = state * 100  # so that it is said next
        assert "the city of" + lm.generate("the city of", 1) == "the city of" + word.replace("▁", " ")
        made.lm_head.weight.data[tokenizer.convert_tokens_to_ids(word)] = 0


def test_a_space_alone_before_the_answer() -> None:
    """allenai/catwalk#156, huggingface/transformers#28010: the space before an answer is a token of its own, which is
    what any answer begins with: a model that says "1789" was taken to know "1995", and P(space) was traced."""
    vocabulary = ["▁the", "▁tower", "▁is", "▁of", "▁", *"0123456789"]
    words = Tokenizer(models.WordLevel({"<unk>": 0} | {w: 1 + i for i, w in enumerate(vocabulary)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="first"), pre_tokenizers.Digits(individual_digits=True)]
    )
    words.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer = wrapped(words)
    fact = Fact("tower", "the {} is of", "1889", "1995")
    assert tokenizer.convert_ids_to_tokens(encode_target(tokenizer, fact.statement, "1995")) == ["▁", *"1995"]
    lm = reading(tokenizer, tie_word_embeddings=False)
    space, one, seven = tokenizer.convert_tokens_to_ids(["▁", "1", "7"])
    with torch.no_grad():
        states = lm.model.model(input_ids=torch.tensor([[*lm.tokens(fact.statement), space]])).last_hidden_state[0]
        others = states[-1] - (states[-1] @ states[-2]) / (states[-2] @ states[-2]) * states[-2]
        lm.model.lm_head.weight.data[space] = 100 * states[-2]
        lm.model.lm_head.weight.data[one] = 1000 * others
    found = ask(lm, fact)
    assert (found.answer, found.answer_ids, len(found.predicting)) == ("1", (space, one), 2)
    assert found.ids[-1] == space
    with torch.no_grad():
        lm.model.lm_head.weight.data[seven] = 2000 * others
    with pytest.raises(UnknownFactError, match="'1995': it says '7'"):
        ask(lm, fact)


def test_a_token_with_text_before_its_line_break() -> None:
    """allenai/open-instruct#147, EuroEval/EuroEval#432: an answer ends at a line break, which is one token with the
    signs before it, so that these were lost: "print" for "print()"."""
    vocabulary = {"<unk>": 0} | {word: 1 + i for i, word in enumerate(["▁how", "▁to", "▁print", "()\n\n", "\n"])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer, words.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    lm = reading(wrapped(words), tie_word_embeddings=False)
    first, *ends = lm.tokenizer.convert_tokens_to_ids(["▁print", "()\n\n", "\n"])
    fact = Fact("how", "{} to", "print()")
    with torch.no_grad():
        states = lm.model.model(input_ids=torch.tensor([[*lm.tokens("how to"), first]])).last_hidden_state[0]
        others = states[-1] - (states[-1] @ states[-2]) / (states[-2] @ states[-2]) * states[-2]
        lm.model.lm_head.weight.data[first] = 100 * states[-2]
        for says, (token, other) in zip(("print()", "print"), (ends, ends[::-1]), strict=True):
            lm.model.lm_head.weight.data[other] = 0
            lm.model.lm_head.weight.data[token] = 1000 * others
            assert lm.generate("how to", 5, stop_at_newline=True).strip() == says
            [record] = measure(lm, [fact], EvalSettings(perplexity_windows=0))[0].scored("prompt")
            assert str(record.answer).strip() == says


def test_spaces_before_punctuation_stay() -> None:
    """huggingface/transformers#32575, #42913: decoding takes spaces out, so that a text is not what was generated."""
    tokenizer = bytes_in_pairs([SOME])
    tokenizer.clean_up_tokenization_spaces = True
    text = " ' s it . does n't , not ? no !"
    assert reading(tokenizer).text(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize(
    "template",
    ["in the {city} of {} the river is", "Rome and {} and Rome are", "{} , tower of Rome , is", "Rome , {} is"],
)
def test_braces_and_another_subject(template: str) -> None:
    """arnab-api/romba#1: braces in a context were filled as if it were a prompt. And a subject that stands in a prompt
    and a context several times: its place is the slot's."""
    lm, prefixes = LanguageModel(model(), tiny.tokenizer(), "tiny"), ("", "Rome {} and {0} . ")
    fact = Fact("Rome", template, "London")
    prompts = build_prompts(lm, [fact], prefixes, "{} is a Rome", "last")
    for row in prompts.rewriting.nonzero()[:, 0].tolist():
        before = prefixes[int(prompts.prefix[row])] + template[: template.index("{}")]
        assert int(prompts.subject[row]) == len(tiny.tokenizer()(before)["input_ids"])
        assert lm.tokenizer.decode(prompts.batch.input_ids[row]).startswith(lm.tokenizer.decode(lm.tokens(before)))
    assert ask(lm, fact, "London").subject[0] == len(tiny.tokenizer()(template[: template.index("{}")])["input_ids"])


def test_the_side_of_the_padding() -> None:
    """zjunlp/EasyEdit#365, #390, huggingface/transformers#29419: with the padding on the other side the edit and the
    figures were others."""
    found = []
    for side in ("right", "left"):
        tokenizer = tiny.tokenizer()
        tokenizer.padding_side = side
        lm = LanguageModel(model(), tokenizer, "tiny")
        facts = [Fact("the Eiffel tower", "{} is located in the city of", "Rome"), Fact("Ben", "{} is in", "Paris")]
        edit = rome().edit(lm, facts)
        with edit.applied(lm):
            scores = score(lm, [(PROMPT, ["Rome and Paris", "Rome"]), ("Ben is in", ["Paris"])])
            found.append((edit.factors[1], scores, lm.generate([PROMPT, "Ben is in"], 5)))
    (left, right), scores, said = found[0]
    assert torch.equal(left, found[1][0][0])
    assert torch.equal(right, found[1][0][1])
    assert scores == found[1][1]
    assert said == found[1][2]
