"""The schema of WikiBigEdit, real changes of Wikidata over time (Thede et al. 2025, "WikiBigEdit")."""

from corrigenda.data.fields import Record, fields_named, optional_text, target, template, text
from corrigenda.data.probes import probe
from corrigenda.facts import Fact, Probe

_NAMES = {"subject": "subject", "prompt": "update", "target_new": "ans", "relation": "relation"}
_REQUIRED = ("subject", "update", "ans")
_READ = (*_REQUIRED, "rephrase", "personas", "relation", "loc", "loc_ans", "mhop", "mhop_ans")


def parse(record: Record) -> Fact:
    """The fact of one WikiBigEdit record.

    - `update`, a question with the subject in place, gives the prompt; `ans` is the new target. The schema has no old
      object: the fact is an insertion.
    - `rephrase` is the paraphrase.
    - `personas` (the same question in somebody's manner of speaking; its answer is `ans`) and `mhop` with `mhop_ans` (a
      question one hop further) are portability probes of the groups "personas" and "multi_hop".
    - `loc` with `loc_ans` is the locality probe.

    All but `subject`, `update` and `ans` may be absent, null, blank or NaN. Not read: `object` (what `ans` says),
    `tag`. The schema has no id, so `Fact` derives one.

    Raises:
        FactError: a field is missing, empty or of the wrong type, or one of a question and its answer is missing;
            named by its path in this schema.
    """
    record = {name: record.get(name) for name in _READ if name in _REQUIRED or not _is_blank(record.get(name))}
    subject = text(record, "subject")
    prompt = template(record, "update", subject)
    answer = target(record, "ans")
    rephrase = optional_text(record, "rephrase")
    personas = optional_text(record, "personas")
    relation = optional_text(record, "relation")
    with fields_named(_NAMES):
        return Fact(
            subject=subject,
            prompt=prompt,
            target_new=answer,
            relation=relation,
            paraphrases=() if rephrase is None else (rephrase,),
            locality=_pair(record, "loc", ""),
            portability=(
                *(probe(personas, [answer], "personas") if personas else ()),
                *_pair(record, "mhop", "multi_hop"),
            ),
        )


def _pair(record: Record, name: str, group: str) -> tuple[Probe, ...]:
    """The probe of a question and its answer, which are both there or both not."""
    if optional_text(record, name) is None and optional_text(record, f"{name}_ans") is None:
        return ()
    return probe(text(record, name), [target(record, f"{name}_ans")], group)


def _is_blank(value: object) -> bool:
    # NaN, which is not equal to itself, is what tables give for a missing text.
    return value is None or value != value or (isinstance(value, str) and not value.strip())
