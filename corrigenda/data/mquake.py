"""The schema of MQuAKE, multi-hop questions over an edited fact (Zhong et al. 2023, "MQuAKE")."""

from corrigenda.data.fields import (
    Record,
    as_target,
    fields_named,
    identifier,
    objects,
    optional_text,
    target,
    text,
    texts,
    under,
)
from corrigenda.data.probes import probe
from corrigenda.errors import FactError
from corrigenda.facts import Fact, Probe

_REWRITE = "requested_rewrite"
_NAMES = {name: f"{_REWRITE}[0].{name}" for name in ("subject", "prompt")} | {
    "target_new": f"{_REWRITE}[0].target_new.str",
    "target_true": f"{_REWRITE}[0].target_true.str",
    "relation": f"{_REWRITE}[0].relation_id",
    "id": "case_id",
}


def parse(record: Record) -> Fact:
    """The fact of one MQuAKE record (MQuAKE-CF, MQuAKE-CF-3k, MQuAKE-T) that asks for one change.

    - `requested_rewrite` holds one change in CounterFact's fields, with its `question`, which is the paraphrase.
    - `questions`, each a multi-hop question over the changed fact, become portability probes, all with `new_answer` and
      `new_answer_alias` as the answer.
    - `new_single_hops`, the links of the chain, become locality probes, the changed link left out: the multi-hop answer
      stands on them, and the edit must leave them as they are. Where a link has a `cloze`, that is the prompt.

    A record whose answer follows from several changes together is refused, since a fact is one change: measured after
    one of them its questions would be unfair.

    Not read: `answer`, `answer_alias` and `single_hops` (the chain before the change), `orig` (the triples).

    Raises:
        FactError: the record asks for several changes, or a field is missing, empty, of the wrong type, or contradicts
            another; named by its path in this schema.
    """
    rewrites = objects(record, _REWRITE)
    if len(rewrites) != 1:
        problem = f"asks for {len(rewrites)} changes; a fact is one, so only records that ask for one can be used"
        raise FactError(_REWRITE, problem)
    with under(f"{_REWRITE}[0]"):
        rewrite = rewrites[0]
        subject = text(rewrite, "subject")
        prompt = text(rewrite, "prompt")
        target_new = target(rewrite, "target_new.str")
        target_true = optional_text(rewrite, "target_true.str")
        relation = optional_text(rewrite, "relation_id")
        question = optional_text(rewrite, "question")
    questions = texts(record, "questions")
    if not questions:
        raise FactError("questions", "is missing or has no question")
    answers = (target(record, "new_answer"), *texts(record, "new_answer_alias"))
    changed = {prompt.replace("{}", subject), question}
    with fields_named(_NAMES):
        return Fact(
            subject=subject,
            prompt=prompt,
            target_new=target_new,
            target_true=None if target_true is None else as_target(target_true),
            id=identifier(record, "case_id"),
            relation=relation,
            paraphrases=() if question is None else (question,),
            locality=_links(record, changed),
            portability=tuple(p for question in questions for p in probe(question, answers)),
        )


def _links(record: Record, changed: set[str | None]) -> tuple[Probe, ...]:
    probes: list[Probe] = []
    for number, hop in enumerate(objects(record, "new_single_hops")):
        with under(f"new_single_hops[{number}]"):
            question, cloze = text(hop, "question"), optional_text(hop, "cloze")
            if not {question, cloze} & (changed - {None}):
                probes += probe(cloze or question, (target(hop, "answer"), *texts(hop, "answer_alias")))
    return tuple(probes)
