"""The schema of QAEdit, questions that people ask (Yang et al. 2025, "The Mirage of Model Editing")."""

from corrigenda.data.fields import (
    Record,
    fields_named,
    identifier,
    objects,
    optional_text,
    target,
    template,
    text,
    under,
)
from corrigenda.data.probes import probe
from corrigenda.facts import Fact, Probe

_NAMES = {"subject": "subject", "prompt": "prompt", "target_new": "target", "id": "id"}


def parse(record: Record) -> Fact:
    """The fact of one QAEdit record.

    `prompt`, a question with the subject in place, gives the prompt; `target`, its right answer, is the new target.
    There is no old object: the fact is an insertion. `rephrase` is the paraphrase, and each ``{"loc", "loc_ans"}`` of
    `locality` a locality probe. Not read: `source` (NQ, TQA or SQA), which is the question's origin and no relation.

    Raises:
        FactError: a field is missing, empty or of the wrong type; named by its path in this schema.
    """
    subject = text(record, "subject")
    prompt = template(record, "prompt", subject)
    new = target(record, "target")
    rephrase = optional_text(record, "rephrase")
    locality: list[Probe] = []
    for number, item in enumerate(objects(record, "locality")):
        with under(f"locality[{number}]"):
            locality += probe(text(item, "loc"), [target(item, "loc_ans")])
    with fields_named(_NAMES):
        return Fact(
            subject=subject,
            prompt=prompt,
            target_new=new,
            id=identifier(record, "id"),
            paraphrases=() if rephrase is None else (rephrase,),
            locality=tuple(locality),
        )
