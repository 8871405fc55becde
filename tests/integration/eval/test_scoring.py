import pytest
import tiny
from scoring_parts import TINY_QUERIES, check

# Prompts of different lengths, one of them twice; targets of one to four words, some that begin alike.


@pytest.mark.parametrize("family", tiny.DECODER_KINDS)
@pytest.mark.parametrize("max_tokens", [4096, 12])
def test_log_probs_are_those_of_whole_forwards(family: str, max_tokens: int) -> None:
    check(tiny.build(family), TINY_QUERIES, max_tokens=max_tokens)
