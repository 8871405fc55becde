"""The environment in which pages are made of templates; a page loads nothing, so that it works from a folder."""

from __future__ import annotations

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def environment(package: str) -> Environment:
    """The environment for the folder ``templates`` of a package; what is put in is escaped.

    What pages share is in ``eval/templates``: ``theme.js`` is their switch between light and dark.
    """
    return Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("eval")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
