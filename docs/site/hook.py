"""What mkdocs asks when it builds the site: pages that are not written by hand, and where links lead.

- The home page is README.md of the repository; CONTRIBUTING.md and CHANGELOG.md are pages, too.
- A page for each method: `method_pages.py`. The API: `api_pages.py`. The notebooks: `notebook_pages.py`. The metrics:
  `metric_table.py`.

The pages of ``docs/`` stay as they are on the repository's page; what differs there is changed here.
"""

import re
from pathlib import Path
from typing import Any

import api_pages
import method_pages
import metric_table
import notebook_pages
from markdown.extensions import Extension
from markdown.inlinepatterns import SimpleTextInlineProcessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
FROM_ROOT = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
"""Pages that lie in the repository's root, by what they are called on the site."""

Nav = list[Any]


class Starred(Extension):
    """``k*`` and ``v*`` are symbols: their star begins no emphasis, as on GitHub."""

    def extendMarkdown(self, md: Any) -> None:  # noqa: N802 (Markdown's name)
        """Puts the pattern before that of emphasis."""
        md.inlinePatterns.register(
            SimpleTextInlineProcessor(r"((?<![\w*])[A-Za-z]\*(?=[\s,;:.)'=-]|$))"), "starred", 65
        )


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts the made pages into the navigation."""
    config.markdown_extensions.append(Starred())  # type: ignore[arg-type]
    for section, pages in (
        ("Methods", method_pages.nav()),
        ("API", api_pages.nav()),
        ("Notebooks", notebook_pages.nav()),
    ):
        [entry] = [entry for entry in config.nav or [] if isinstance(entry, dict) and section in entry]
        entry[section] = [*entry[section], *pages]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the made pages."""
    guide = files.get_file_from_path("README.md")
    assert guide is not None
    files.remove(guide)  # would be the home page
    files.append(File("README.md", config.docs_dir, config.site_dir, True, dest_uri="pages/index.html"))
    made: dict[str, str | bytes] = {page: (ROOT / name).read_text(encoding="utf-8") for page, name in FROM_ROOT.items()}
    for more in (method_pages.pages(), api_pages.pages(), notebook_pages.pages()):
        made.update(more)
    for uri, content in made.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Leads links between the root and ``docs/`` to the site's pages, and fills in what is computed."""
    uri = page.file.src_uri
    if uri in FROM_ROOT:
        markdown = re.sub(r"\]\(docs/", "](", markdown)
    for page_uri, name in FROM_ROOT.items():
        if uri in FROM_ROOT or name != "README.md":  # docs/ has a README.md of its own
            up = "" if uri in FROM_ROOT else r"\.\./"
            markdown = re.sub(rf"\]\({up}{re.escape(name)}(?=[)#])", f"]({page_uri}", markdown)
    if uri == "glossary.md":
        markdown += metric_table.table()
    if uri == "methods.md":
        markdown = method_pages.overview(markdown)
    return markdown
