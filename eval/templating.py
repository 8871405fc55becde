"""The environment in which pages are made of templates; a page loads nothing, so that it works from a folder."""

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from corrigenda.text.display import printable


def environment(package: str) -> Environment:
    """The environment for the folder ``templates`` of a package; what is put in is escaped, control characters, too.

    What pages share is in ``eval/templates``: ``theme.js`` is their switch between light and dark.
    """
    return Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("eval")]),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _finalize(value: object) -> object:
    return printable(value, lines=True) if isinstance(value, str) and not isinstance(value, Markup) else value
