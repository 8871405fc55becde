import dataclasses
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from editors_parts import DICTIONARY, FACTS, TONGUE, TOWER

from corrigenda import EditRefusedError, LanguageModel
from corrigenda.dictionaries.layouts import read_dictionary, write_dictionary
from corrigenda.errors import SettingsError, UnsupportedModelError
from corrigenda.forward.recording import forward_logits, forward_to
from corrigenda.prompts import encode_target
from editing import FeatureSteering, prepare
from editing.editor import FactRefusedError

ONE = read_dictionary(DICTIONARY)


lm = pytest.fixture(tiny.steep)


def ffn_output(lm: LanguageModel, prompt: str) -> torch.Tensor:
    with lm.memory(1).capture() as seen:
        forward_to(lm, lm.batch([lm.tokens(prompt)]), 1)
    return seen.output[0]


def said(lm: LanguageModel, feature: int, amount: float, positions: str) -> float:
    """The mean log-probability of the facts' new objects, with an amount of a row at all tokens but the first."""
    total = 0.0
    for fact in FACTS:
        target = encode_target(lm.tokenizer, fact.statement, str(fact.target_new))
        batch = lm.batch([lm.tokens(fact.statement)])
        at = torch.ones_like(batch.input_ids, dtype=torch.bool)
        at[:, : 1 if positions == "all" else -1] = False
        with lm.memory(1).add(amount * ONE.decoder[feature], at):
            total += float(forward_logits(lm, batch, batch.lengths - 1)[0].double().log_softmax(-1)[target[0]])
    return total / len(FACTS)


def test_a_multiple_of_the_row_joins_the_output(lm: LanguageModel) -> None:
    plain = ffn_output(lm, TOWER.statement)
    edit = FeatureSteering(DICTIONARY, feature=5, strength=2.0).edit(lm, [TOWER])
    with edit.applied(lm):
        added = ffn_output(lm, TOWER.statement) - plain
    ids = [*lm.tokens(TOWER.statement)]
    assert len(encode_target(lm.tokenizer, TOWER.statement, "Rome")) == 1  # so that the prompt alone was looked at
    length = 2 * plain[1:].norm(dim=1).mean()
    assert torch.allclose(added, (length * ONE.decoder[5]).expand(len(ids), -1), atol=1e-4 * float(length))


@pytest.mark.parametrize("positions", ["all", "predicting"])
def test_the_feature_is_the_one_that_raises_the_new_objects_most(lm: LanguageModel, positions: Any) -> None:
    edit = FeatureSteering(DICTIONARY, positions=positions).edit(lm, FACTS)
    step = 1e-3
    gains = [
        (said(lm, feature, step, positions) - said(lm, feature, -step, positions)) / (2 * step)
        for feature in range(ONE.n_features)
    ]
    best = max(range(ONE.n_features), key=gains.__getitem__)
    assert [figures["feature"] for figures in edit.origin.report] == [best] * 3
    mean = sum(figures["gain"] for figures in edit.origin.report) / 3
    assert mean == pytest.approx(gains[best], rel=0.02)


def test_least_of_all_changes(lm: LanguageModel) -> None:
    edit = FeatureSteering(DICTIONARY, feature=3).edit(lm, [TONGUE])
    [(neurons, amounts)] = edit.scales.values()
    values = lm.memory(1).values
    wanted = torch.linalg.pinv(values.double().T) @ (amounts @ values).double()
    assert neurons.tolist() == list(range(lm.memory(1).d_ffn))
    assert torch.allclose(amounts.double(), wanted, atol=1e-4 * float(wanted.norm()))


def test_what_it_refuses_in_a_line(lm: LanguageModel, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"feature: dictionary=None names no dictionary; give the folder"):
        prepare(FeatureSteering(), lm)
    with pytest.raises(IndexError, match=r"feature=16: .* has features 0 to 15"):
        FeatureSteering(DICTIONARY, feature=16).edit(lm, [TOWER])
    other = write_dictionary(dataclasses.replace(ONE, layer=2), tmp_path)
    with pytest.raises(UnsupportedModelError, match="mixture of experts"):
        FeatureSteering(str(other)).edit(tiny.build("mixtral"), [TOWER])
    alone = dataclasses.replace(TOWER, subject="Eiffel", prompt="{}")
    with pytest.raises(FactRefusedError, match="its prompt is one token, and there no dictionary looks"):
        FeatureSteering(DICTIONARY).edit(lm, [alone])
    lm.memory(1).values[:, 0] = 0  # nothing that it adds has a first number
    share = f"{100 * abs(float(ONE.decoder[0, 0])):.2g}"
    with pytest.raises(EditRefusedError, match=rf"span all but {share} % of the feature's row"):
        FeatureSteering(DICTIONARY, feature=0).edit(lm, [TOWER])
