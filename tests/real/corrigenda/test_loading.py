from batch_parts import by_transformers

from corrigenda import LanguageModel

PROMPTS = [
    "The capital of France is",
    "Water",
    "Question: Who wrote the play Hamlet, and in which century did its author live?\nAnswer:",
    "The Eiffel Tower is located in the city of",
]


def test_the_default_model_has_the_weights_it_always_had(smollm2: LanguageModel) -> None:
    """Figures are kept by them: moments, targets, runs. As float32 in the cache of earlier versions, or packed."""
    assert smollm2.fingerprint.startswith("5f08655c7eab")


def test_generate_equals_transformers(smollm2: LanguageModel) -> None:
    expected = [by_transformers(smollm2, prompt, 12) for prompt in PROMPTS]
    assert smollm2.generate(PROMPTS, 12) == expected
    assert [smollm2.generate(prompt, 12) for prompt in PROMPTS[:2]] == expected[:2]
    assert len(set(expected)) == len(PROMPTS)


def test_stop_at_newline(smollm2: LanguageModel) -> None:
    prompt = "Question: Who wrote Hamlet?\nAnswer:"
    whole, line = smollm2.generate(prompt, 12), smollm2.generate(prompt, 12, stop_at_newline=True)
    assert "\n" in whole
    assert line == whole.split("\n")[0]
    short = "The capital of France is"
    rows = smollm2.generate([prompt, short], 6, stop_at_newline=True)
    assert rows == [smollm2.generate(text, 6, stop_at_newline=True) for text in (prompt, short)]


def test_end_token(smollm2: LanguageModel) -> None:
    chat = "<|im_start|>user\nWhat is the capital of France? Answer in one word.<|im_end|>\n<|im_start|>assistant\n"
    answer, other = smollm2.generate([chat, PROMPTS[0]], 14)
    assert answer == by_transformers(smollm2, chat, 14)
    assert answer.endswith("Paris.")
    assert len(smollm2.tokenizer(answer)["input_ids"]) < 12
    assert other == smollm2.generate(PROMPTS[0], 14)
    assert smollm2.is_end(smollm2.tokenizer.eos_token_id)
    assert not smollm2.is_end(smollm2.tokens("Paris")[0])
