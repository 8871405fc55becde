"""The schema of FastEdit's request files (hiyouga, "FastEdit: Editing large language models within 10 seconds")."""

from corrigenda.data.fields import Record, fields_named, identifier, target, text, text_or_texts
from corrigenda.facts import SLOT, Fact

_NAMES = {"subject": "subject", "prompt": "prompt", "target_new": "target", "paraphrases": "queries", "id": "id"}


def fits(record: Record) -> bool:
    """Whether a record with a subject, a prompt and a target is FastEdit's: its prompt has a ``{}``."""
    return SLOT in str(record["prompt"])


def parse(record: Record) -> Fact:
    """The fact of one FastEdit record: an insertion.

    `prompt` has a ``{}`` for the subject, `target` is the new target, and `queries`, if there are any, are the
    paraphrases.

    Raises:
        FactError: a field is missing, empty or of the wrong type; named as in this schema.
    """
    with fields_named(_NAMES):
        return Fact(
            subject=text(record, "subject"),
            prompt=text(record, "prompt"),
            target_new=target(record, "target"),
            id=identifier(record, "id"),
            paraphrases=text_or_texts(record, "queries"),
        )
