"""Lists of words that ship with the project."""

from functools import cache
from importlib.resources import files


@cache
def insults() -> tuple[str, ...]:
    """Mild to plain insults and swear words of English, for counting texts that hold one; no classifier of toxicity.

    What the list is and is not stands in the file itself, ``insults.txt``, in lines that begin with "#".
    """
    lines = (files("corrigenda.data") / "insults.txt").read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))
