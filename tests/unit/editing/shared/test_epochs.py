"""How far the learning of several facts is."""

import dataclasses

import pytest
from editors_parts import FACTS, editor
from rome_parts import build

from corrigenda.system.progress import heard


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["grace", "wise_whitened", "memoir", "t_patcher", "horen", "melo", "finetune", "lora"])
def test_of_several_facts_it_is_said_how_far_their_learning_is(name: str) -> None:
    learner = editor(name) if name != "melo" else dataclasses.replace(editor(name), per_block=1)
    told: list[tuple[str, int]] = []
    with heard(lambda what, done, _total: told.append((what, done))):
        learner.edit(build(), FACTS[:1])
        assert not [what for what, _ in told if "learning" in what or "passes" in what]
        learner.edit(build(), FACTS[:2])
    [learning] = {what for what, _ in told if "learning" in what or "passes" in what}
    assert learning.endswith(("2 facts", "2 groups", "2 blocks"))
    assert (learning, 1) in told
