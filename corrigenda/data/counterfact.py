"""The CounterFact schema of ROME (Meng et al. 2022, "Locating and Editing Factual Associations in GPT", appendix D)."""

from corrigenda.data.fields import Record, fields_named, identifier, optional_text, target, text, texts, texts_about
from corrigenda.data.probes import hop
from corrigenda.facts import Fact

_NAMES = {
    "id": "case_id",
    "subject": "requested_rewrite.subject",
    "prompt": "requested_rewrite.prompt",
    "relation": "requested_rewrite.relation_id",
    "target_new": "requested_rewrite.target_new.str",
    "target_true": "requested_rewrite.target_true.str",
    "paraphrases": "paraphrase_prompts",
    "neighbourhood": "neighborhood_prompts",
    "generation": "generation_prompts",
}


def parse(record: Record) -> Fact:
    """The fact of one CounterFact record.

    Read: `case_id` (the fact's id), `requested_rewrite` (`prompt` with one ``{}``, `subject`, `relation_id`,
    `target_new.str`, `target_true.str`), and the lists `paraphrase_prompts`, `neighborhood_prompts` and
    `generation_prompts`, each of which may be absent. Paraphrases and generation prompts arrive with the subject in
    place and must contain it. Neighbourhood prompts are about other subjects, but may contain this one's name
    ("iPhone" in "iPhone X is created by"), so that is not checked. `portability`, if there is one, is the question one
    hop further of EasyEdit's file (`corrigenda.data.probes.hop`).

    Not read: `attribute_prompts`, prompts about other subjects whose right answer already is `target_new`. They are
    neither paraphrases nor neighbours, and none of the metrics uses them. The Wikidata ids of the targets are left
    out too, since an edit is made of their text.

    Raises:
        FactError: a field is missing, empty, of the wrong type, or contradicts another; named by its path in this
            schema.
    """
    subject = text(record, _NAMES["subject"])
    with fields_named(_NAMES):
        return Fact(
            subject=subject,
            prompt=text(record, _NAMES["prompt"]),
            target_new=target(record, _NAMES["target_new"]),
            target_true=target(record, _NAMES["target_true"]),
            id=identifier(record, _NAMES["id"]),
            relation=optional_text(record, _NAMES["relation"]),
            paraphrases=texts_about(record, _NAMES["paraphrases"], subject),
            neighbourhood=texts(record, _NAMES["neighbourhood"]),
            generation=texts_about(record, _NAMES["generation"], subject),
            portability=hop(record),
        )
