"""The pages of the API: of each package, what it exports, from the docstrings."""

import importlib
from collections.abc import Mapping

PACKAGES: Mapping[str, str] = {
    "corrigenda": "The core: models, facts, edits, the knowledge base.",
    "locate": "Where a fact lies, and what is there.",
    "editing": "Editors: a frozen dataclass of hyper-parameters with `edit(lm, facts) -> Edit`.",
    "eval": "What an edit did.",
}
"""The packages whose exports are the API, and what to say of each."""


def nav() -> list[dict[str, str]]:
    """The entries of the navigation."""
    return [{package: f"api/{package}.md"} for package in PACKAGES]


def exports(package: str) -> dict[str, str]:
    """The names that a package exports, with the modules that they come from."""
    return dict(importlib.import_module(package).__dict__["_homes"])  # a lazy package: corrigenda/system/lazy.py


def pages() -> dict[str, str]:
    """The pages, by their place on the site; mkdocstrings writes what is said of each name."""
    return {f"api/{package}.md": _page(package) for package in PACKAGES}


def _page(package: str) -> str:
    names = "\n\n".join(f"::: {home}.{name}" for name, home in sorted(exports(package).items()))
    return f"# {package}\n\n{PACKAGES[package]} `from {package} import ...`\n\n{names}\n"
