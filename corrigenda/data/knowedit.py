"""The schemas of KnowEdit's four fact subsets (Zhang et al. 2024, "A Comprehensive Study of Knowledge Editing")."""

from __future__ import annotations

from collections.abc import Mapping

from corrigenda.data.fields import Record, fields_named, lookup, objects, shown, target, template, text, under
from corrigenda.data.probes import answers_in, group_name, probe
from corrigenda.facts import Fact, FactError, Probe

_NAMES = {"subject": "subject", "prompt": "prompt", "target_new": "target_new", "target_true": "ground_truth"}
_BIOGRAPHY_NAMES = {"subject": "concept", "prompt": "text", "target_new": "labels"}


def fits(record: Record) -> bool:
    """Whether a record with a subject and a prompt is KnowEdit's: its probes are grouped by criterion."""
    grouped = any(isinstance(record.get(name), Mapping) for name in ("portability", "locality"))
    return grouped or "ground_truth" in record or "rephrase_prompt" in record


def parse(record: Record) -> Fact:
    """The fact of one record of wiki_recent, wiki_counterfact or ZsRE.

    - `prompt`, with the subject in place, gives the prompt: the subject's last occurrence turns into ``{}``.
    - `ground_truth` (a string or a list of right answers; absent in wiki_recent, which inserts) gives the true target,
      the first of them. A `target_new` that is any of them is refused, for then there is nothing to change.
    - `rephrase_prompt` or `rephrase`, if there is one, is the paraphrase.
    - `portability` and `locality` hold lists of ``{"prompt", "ground_truth"}`` by criterion (Reasoning,
      Logical_Generalization, Subject_Aliasing; Relation_Specificity, Forgetfulness). They become probes whose group is
      the criterion. `ground_truth` is a string, a list, or a list of lists; a probe without an answer is left out.

    Not read: `cond`, a rendering of the other fields. The schema has no id, so `Fact` derives one.

    Raises:
        FactError: a field is missing, empty, of the wrong type, or contradicts another; named by its path in this
            schema.
    """
    subject = text(record, "subject")
    target_new = target(record, "target_new")
    truths = answers_in(lookup(record, "ground_truth"), "ground_truth")
    if target_new.strip() in map(str.strip, truths):
        problem = f"is one of the right answers ({target_new!r} in {list(truths)}), so there is nothing to change"
        raise FactError("target_new", problem)
    prompt = template(record, "prompt", subject)
    paraphrases = tuple(text(record, name) for name in ("rephrase_prompt", "rephrase") if lookup(record, name))
    with fields_named(_NAMES):
        return Fact(
            subject=subject,
            prompt=prompt,
            target_new=target_new,
            target_true=truths[0] if truths else None,
            paraphrases=paraphrases,
            locality=_probes(record, "locality"),
            portability=_probes(record, "portability"),
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


def _probes(record: Record, name: str) -> tuple[Probe, ...]:
    criteria = lookup(record, name)
    if criteria is None:
        return ()
    if not isinstance(criteria, Mapping):
        raise FactError(name, f"must be an object of lists by criterion, got {shown(criteria)}")
    probes: list[Probe] = []
    for criterion in criteria:
        path = f"{name}.{criterion}"
        for number, item in enumerate(objects(record, path)):
            with under(f"{path}[{number}]"):
                answers = answers_in(item.get("ground_truth"), "ground_truth")
                # In a few records the same question is asked in several ways.
                prompts = item["prompt"] if isinstance(item.get("prompt"), list) else [text(item, "prompt")]
                for prompt in prompts:
                    probes += probe(text({"prompt": prompt}, "prompt"), answers, group_name(criterion))
    return tuple(probes)
