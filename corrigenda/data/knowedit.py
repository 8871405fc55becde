"""The schemas of KnowEdit's four fact subsets and of files that are laid out like them.

Source: Zhang et al. 2024, "A Comprehensive Study of Knowledge Editing for Large Language Models".
"""

from collections.abc import Mapping

from corrigenda.data.fields import (
    Record,
    fields_named,
    identifier,
    lookup,
    objects_in,
    target,
    template,
    text,
    text_or_texts,
    typed_repr,
    under,
)
from corrigenda.data.probes import answers_in, group_name, hop, probe
from corrigenda.errors import FactError
from corrigenda.facts import Fact, Probe

_NAMES = {"subject": "subject", "prompt": "prompt", "target_new": "target_new", "target_true": "ground_truth"}
_BIOGRAPHY_NAMES = {"subject": "concept", "prompt": "text", "target_new": "labels"}


_OWN = frozenset({"ground_truth", "target_old", "rephrase_prompt", "rephrase", "locality_prompt", "portability_prompt"})


def fits(record: Record) -> bool:
    """Whether a record with a subject and a prompt is of these: its probes are grouped, or its fields named so."""
    grouped = any(isinstance(record.get(name), Mapping) for name in ("portability", "locality"))
    return grouped or not _OWN.isdisjoint(record)


def parse(record: Record) -> Fact:
    """The fact of one record of wiki_recent, wiki_counterfact or ZsRE, of EasyEdit's flat files, or of CKnowEdit.

    - `prompt`, with the subject in place, gives the prompt: the subject's last occurrence turns into ``{}``.
    - `ground_truth` (a string or a list of right answers; absent in wiki_recent, which inserts), or CKnowEdit's
      `target_old`, gives the true target, the first of them. A `target_new` that is any of them is refused, for then
      there is nothing to change.
    - `rephrase_prompt` or `rephrase`, a text or a list, are the paraphrases.
    - `portability` and `locality` hold lists of ``{"prompt", "ground_truth"}`` by criterion (Reasoning,
      Logical_Generalization, Subject_Aliasing; Relation_Specificity, Forgetfulness). They become probes whose group is
      the criterion. `ground_truth` is a string, a list, or a list of lists; a probe without an answer is left out. Also
      read: one list without criteria; ``{"prompt": [...], "ground_truth": [...]}`` in place of a criterion's list;
      "answer" in place of "ground_truth".
    - `locality_prompt` with `locality_ground_truth`, and `portability_prompt` with `portability_ground_truth`, each a
      text or a list, are probes, too.
    - `case_id`, if there is one, is the id; else `Fact` derives one.

    Not read: `cond`, a rendering of the other fields.

    Raises:
        FactError: a field is missing, empty, of the wrong type, or contradicts another; named by its path in this
            schema.
    """
    subject = text(record, "subject")
    target_new = target(record, "target_new")
    source = "target_old" if lookup(record, "ground_truth") is None else "ground_truth"
    truths = answers_in(lookup(record, source), source)
    if target_new.strip() in map(str.strip, truths):
        problem = f"is one of the right answers ({target_new!r} in {list(truths)}), so there is nothing to change"
        raise FactError("target_new", problem)
    prompt = template(record, "prompt", subject)
    with fields_named({**_NAMES, "target_true": source}):
        return Fact(
            subject=subject,
            prompt=prompt,
            target_new=target_new,
            target_true=truths[0] if truths else None,
            id=identifier(record, "case_id"),
            paraphrases=(*text_or_texts(record, "rephrase_prompt"), *text_or_texts(record, "rephrase")),
            locality=(*_probes(record, "locality"), *_flat(record, "locality")),
            portability=(*_probes(record, "portability"), *_flat(record, "portability")),
        )


def parse_biography(record: Record) -> Fact:
    """The fact of one record of WikiBio: a passage about a person and the sentence that shall follow it.

    `concept` is the subject, whose last occurrence in `text` turns into ``{}``; `labels` is the new target, which
    replaces what a model made up. `locality` is read as in `parse`.

    Raises:
        FactError: a field is missing, empty or of the wrong type; named by its path in this schema.
    """
    subject = text(record, "concept")
    prompt = template(record, "text", subject)
    target_new = target(record, "labels")
    with fields_named(_BIOGRAPHY_NAMES):
        return Fact(
            subject=subject,
            prompt=prompt,
            target_new=target_new,
            locality=_probes(record, "locality"),
            portability=_probes(record, "portability"),
        )


def _flat(record: Record, name: str) -> tuple[Probe, ...]:
    """The probes of `locality_prompt` and `locality_ground_truth`."""
    asked, answered = f"{name}_prompt", f"{name}_ground_truth"
    if lookup(record, asked) is None and lookup(record, answered) is None:
        return ()
    if lookup(record, asked) is None:
        raise FactError(asked, f"is missing, and there is a {answered}")
    return _columns(record, asked, answered, "")


def _columns(record: Record, asked: str, answered: str, group: str) -> tuple[Probe, ...]:
    """Probes whose prompts stand in one field and whose answers in another: a text each, or a list each."""
    prompts = text_or_texts(record, asked)
    answers = record.get(answered)
    if not prompts and not answers_in(answers, answered):
        return ()  # blank ones stand for none
    each = answers if isinstance(lookup(record, asked), (list, tuple)) else [answers]
    if not isinstance(each, (list, tuple)) or len(each) != len(prompts):
        raise FactError(
            answered, f"must have an answer for each of the {len(prompts)} prompts, got {typed_repr(answers)}"
        )
    return tuple(
        p
        for prompt, answer in zip(prompts, each, strict=True)
        for p in probe(prompt, answers_in(answer, answered), group)
    )


def _probes(record: Record, name: str) -> tuple[Probe, ...]:
    criteria = record.get(name)
    if criteria is None:
        return ()
    if isinstance(criteria, (list, tuple)):
        return _listed(record, name, name, "")
    if not isinstance(criteria, Mapping):
        raise FactError(name, f"must be an object of lists by criterion, got {typed_repr(criteria)}")
    if "New Question" in criteria:
        return hop(record)
    probes: list[Probe] = []
    for criterion in criteria:
        path = f"{name}.{criterion}"
        if isinstance(columns := criteria[criterion], Mapping):
            with under(path):
                probes += _columns(columns, "prompt", "ground_truth", group_name(criterion))
        else:
            probes += _listed(criteria, criterion, path, group_name(criterion))
    return tuple(probes)


def _listed(record: Record, name: str, path: str, group: str) -> tuple[Probe, ...]:
    """The probes of a list of ``{"prompt", "ground_truth"}``."""
    probes: list[Probe] = []
    for number, item in enumerate(objects_in(record.get(name), path)):
        with under(f"{path}[{number}]"):
            source = "answer" if lookup(item, "ground_truth") is None else "ground_truth"
            answers = answers_in(item.get(source), source)
            # In a few records the same question is asked in several ways.
            prompts = item["prompt"] if isinstance(item.get("prompt"), list) else [text(item, "prompt")]
            for prompt in prompts:
                probes += probe(text({"prompt": prompt}, "prompt"), answers, group)
    return tuple(probes)
