"""`Replies`: what a judge said, kept on the disk, so that nothing is asked twice."""

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corrigenda.system.files import write_json
from corrigenda.system.plain_data import read_json

logger = logging.getLogger(__name__)


class Replies:
    """The replies of one judge with one set of settings; a file for each, which is wholly there or not at all.

    `judge` is what makes a judge the same one: its model and what it is asked with. Never a key. The folder may have
    those of all judges.
    """

    def __init__(self, folder: Path, judge: Mapping[str, Any]) -> None:
        self._judge = dict(judge)
        self._folder = folder / _hash(json.dumps(self._judge, sort_keys=True))[:16]

    def get(self, prompt: str) -> str | None:
        """The reply to a prompt; None where there is none, or its file is damaged."""
        path = self._path(prompt)
        try:
            kept = read_json(path)
            if (kept["judge"], kept["prompt"]) == (self._judge, prompt) and isinstance(kept["reply"], str):
                return str(kept["reply"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            pass
        logger.warning("%s is damaged; the judge is asked again", path)
        return None

    def keep(self, prompt: str, reply: str) -> None:
        """Keeps a reply."""
        write_json(self._path(prompt), {"judge": self._judge, "prompt": prompt, "reply": reply})

    def _path(self, prompt: str) -> Path:
        return self._folder / f"{_hash(prompt)}.json"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
