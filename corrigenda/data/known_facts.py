"""ROME's known facts: statements that GPT-2 XL completes correctly, for causal tracing (Meng et al. 2022)."""

from corrigenda.data.fields import Record, fields_named, identifier, optional_text, target, template, text
from corrigenda.facts import Fact

_NAMES = {"prompt": "prompt", "target_true": "attribute", "id": "known_id", "relation": "relation_id"}


def parse(record: Record) -> Fact:
    """The fact of one known-facts record: it has a true target (`attribute`) and no new one, for it is to be traced.

    The prompt is made from `prompt` by replacing the subject's last occurrence by ``{}``. The field `template` is not
    used, because in the published file it often lacks the last words of `prompt` ("{} is located in the continent"
    where the prompt goes on with "of"), which the attribute must follow. `prediction`, what GPT-2 XL wrote, is not
    read.

    Raises:
        FactError: a field is missing, empty or of the wrong type; named as in this schema.
    """
    subject = text(record, "subject")
    with fields_named(_NAMES):
        return Fact(
            subject=subject,
            prompt=template(record, "prompt", subject),
            target_new=None,
            target_true=target(record, "attribute"),
            id=identifier(record, "known_id"),
            relation=optional_text(record, "relation_id"),
        )
