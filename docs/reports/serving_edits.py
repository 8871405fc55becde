"""The edits of docs/serving.md, their questions, and what transformers and PEFT answer."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pages import read_json
from runs import without_generation
from work import loaded

from corrigenda import Edit, Fact, load, read_facts
from corrigenda.moments.text import Text
from corrigenda.system.files import write_json
from editing import Editor, EraseNeurons, Memit, Rome
from eval.metrics.free_generation import matches_strictly
from locate.neurons.locator import Neurons

MODEL = "qwen2.5-coder-0.5b"
FIRST, FACTS = 1700, 60  # facts of the file that are passed over, as on other pages; and those that follow
TOGETHER = 30  # so many are edited in one edit; the others in an edit each
NEIGHBOURS, TOKENS = 2, 10
EDITORS: dict[str, Callable[[], Editor]] = {
    "memit": lambda: Memit(text=Text("shipped")),
    "rome": lambda: Rome(text=Text("shipped")),
}
GROUPS = {f"{name}-{n}": n for name in EDITORS for n in (TOGETHER, 1)} | {"erase-1": 1}
"""By group, how many facts an edit of it has."""


@cache
def facts_of(data: Path) -> tuple[Fact, ...]:
    """All facts, with the neighbours that are asked."""
    return tuple(without_generation(read_facts(data, offset=FIRST, limit=FACTS), NEIGHBOURS))


def questions(fact: Fact) -> list[str]:
    """What is asked of a fact: its prompt, its paraphrases, neighbours."""
    return [fact.statement, *fact.paraphrases, *fact.neighbourhood]


def groups_facts(group: str, work: Path, data: Path) -> list[tuple[Fact, ...]]:
    """For each edit of a group its facts; the one that is erased is the first that the unedited model says."""
    facts = facts_of(data)
    if group == "none":  # each fact by itself
        return [(fact,) for fact in facts]
    if group == "erase-1":
        plain = read_json(work / "none" / "transformers" / "values.json")["answers"]
        said = [fact for fact, [answers] in zip(facts, plain, strict=True) if says(answers[0], fact.target_true, fact)]
        return [(said[0],)]
    return [facts[:TOGETHER]] if GROUPS[group] == TOGETHER else [(fact,) for fact in facts[TOGETHER:]]


def says(answer: str, what: str | None, fact: Fact) -> bool:
    """Whether an answer begins with the old object."""
    return what is not None and matches_strictly(answer, (what,), fact.target_new)


def edits_of(group: str, work: Path, data: Path) -> Iterator[tuple[Edit, tuple[Fact, ...], Path]]:
    """The edits of a group with their facts and folders, each made once."""
    for number, facts in enumerate(groups_facts(group, work, data)):
        folder = work / group / "edits" / f"{number:02}"
        if not (folder / "seconds.json").is_file():
            begun = time.perf_counter()
            editor = EDITORS.get(group.partition("-")[0], lambda: EraseNeurons(find=Neurons()))()
            editor.edit(loaded(MODEL), list(facts)).save(folder)
            write_json(folder / "seconds.json", time.perf_counter() - begun)
        yield Edit.load(folder), facts, folder


Asked = list[list[list[str]]]  # by edit, by fact, the answers to its questions


def in_transformers(group: str, work: Path, data: Path) -> Asked:
    """The answers with each edit of a group applied, or with none ("none": every fact by itself)."""
    lm = loaded(MODEL)
    if group == "none":
        return [[lm.generate(questions(fact), TOKENS)] for fact in facts_of(data)]
    found: Asked = []
    for edit, facts, _ in edits_of(group, work, data):
        with edit.applied(lm):
            found.append([lm.generate(questions(fact), TOKENS) for fact in facts])
    return found


def in_peft(group: str, work: Path, data: Path) -> Asked:
    """The answers of the model of transformers with the edit as an adapter inside, by transformers' own `generate`."""
    from peft import PeftModel

    bare, found = load(MODEL), []
    model: Any = bare.model
    for edit, facts, folder in edits_of(group, work, data):
        edit.to_peft(folder / "peft")
        adapted: Any = PeftModel.from_pretrained(model, str(folder / "peft"))
        asked = [questions(fact) for fact in facts]
        prompts = [one for some in asked for one in some]
        given = bare.tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
        pad: Any = bare.tokenizer.pad_token_id
        made = adapted.generate(**given, max_new_tokens=TOKENS, do_sample=False, pad_token_id=pad)
        texts = iter(bare.tokenizer.batch_decode(made[:, given["input_ids"].shape[1] :], skip_special_tokens=True))
        found.append([[str(next(texts)) for _ in some] for some in asked])
        model = adapted.unload()
    return found


def facts_json(facts: Sequence[Fact]) -> list[dict[str, object]]:
    """What the digest needs of facts."""
    return [
        {
            **{"subject": one.subject, "answers": list(one.answers), "true": one.target_true},
            **{"questions": questions(one), "paraphrases": len(one.paraphrases)},
        }
        for one in facts
    ]
