"""The zsRE question-answering schema of MEND (Mitchell et al. 2022; questions from Levy et al. 2017)."""

from corrigenda.data.fields import (
    Record,
    as_target,
    fields_named,
    require_subject,
    target,
    template,
    text,
    text_or_texts,
    typed_repr,
)
from corrigenda.data.probes import hop
from corrigenda.errors import FactError
from corrigenda.facts import Fact, Probe

_LOCALITY_PREFIX = "nq question: "
_NAMES = {"subject": "subject", "prompt": "src", "target_new": "alt", "target_true": "answers[0]", "id": "src"}


def parse(record: Record) -> Fact:
    """The fact of one zsRE record.

    - `src`, a question with the subject in place, becomes the prompt: the subject's last occurrence turns into ``{}``.
    - `alt`, the counterfactual answer, is the new target and the first of `answers` the true one, as in MEND and in
      most later work. ROME's own zsRE tables instead insert `answers[0]` itself, with no old object; for those, make
      facts from these with ``dataclasses.replace(fact, id="", target_new=fact.target_true, target_true=None)``.
      `answers` may list several right answers; only the first is kept, and an `alt` that is any of them is refused,
      for then there is nothing to change.
    - `rephrase` is the one paraphrase.
    - `loc` and `loc_ans`, an unrelated Natural Questions pair, make the one locality probe. `loc` must start with
      "nq question: "; as in ROME, that prefix stays in the prompt and a "?" is put at its end.
    - `portability`, if there is one, is the question one hop further of EasyEdit's file (`corrigenda.data.probes.hop`).

    Targets lose the blanks around them (some `alt` start with one). Not read: `pred`, what the model edited by MEND's
    authors predicted, and `cond`, a rendering of the other fields. The schema has no id, so `Fact` derives one from
    the prompt and the targets.

    Raises:
        FactError: a field is missing, empty, of the wrong type, or contradicts another; named by its path in this
            schema.
    """
    subject = text(record, "subject")
    answers = tuple(map(as_target, text_or_texts(record, "answers")))
    if not answers:
        raise FactError("answers", "is missing or has no answer")
    alt = target(record, "alt")
    if alt.strip() in map(str.strip, answers):
        problem = f"is one of the right answers ({alt!r} in {list(answers)}), so there is nothing to change"
        raise FactError("alt", problem)
    rephrase = text(record, "rephrase")
    require_subject(rephrase, "rephrase", subject)
    with fields_named(_NAMES):
        return Fact(
            subject=subject,
            prompt=template(record, "src", subject),
            target_new=alt,
            target_true=answers[0],
            paraphrases=(rephrase,),
            locality=(Probe(prompt=_locality_prompt(record), answer=target(record, "loc_ans")),),
            portability=hop(record),
        )


def _locality_prompt(record: Record) -> str:
    question = text(record, "loc").rstrip()
    if not question.startswith(_LOCALITY_PREFIX):
        raise FactError("loc", f"must start with {_LOCALITY_PREFIX!r}, got {typed_repr(question)}")
    return question if question.endswith("?") else question + "?"
