"""A studio on a tiny model, for tests."""

from pathlib import Path

import tiny

from editing import EDITORS
from jobs.studio.corrections import Corrections
from jobs.studio.session import Session

SENTENCE, SUBJECT = "the Eiffel tower is located in the city of", "the Eiffel tower"
OTHER = ("the mother tongue of Danielle Darrieux is", "Danielle Darrieux", "English")


def session(folder: Path) -> Session:
    """A studio with an empty list; its editors are quick, and do what they promise on a random model."""
    editors = {"finetune": EDITORS["finetune"](layer=1, steps=40, lr=0.05), "in_context": EDITORS["in_context"]()}
    return Session(tiny.build("llama"), Corrections(folder / "corrections.jsonl"), editors, folder / "studio")
