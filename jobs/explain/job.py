"""``job=explain``: the page of a fact, before and after an edit."""

from dataclasses import dataclass

from omegaconf import DictConfig

from corrigenda.settings.checked import checked
from corrigenda.system.files import expanded
from jobs.explain.explanation import explain, html_path
from jobs.explain.settings import ExplainSettings
from jobs.shared.base import load_model, say
from jobs.shared.data import read_data
from jobs.shared.job import StoreJob
from jobs.shared.registry import register
from jobs.shared.settings import check, instantiate_editor


@dataclass(frozen=True)
@checked
class PageSettings(ExplainSettings):
    """``job=explain``. ``data.limit=1`` reads one fact; ``data.offset=`` chooses it.

    Attributes:
        file: the page.
        data: a .json file for what the page shows; None: none (the page has it, too).
    """

    file: str = "fact.html"
    data: str | None = None


@register("explain", PageSettings, aim="the page of a fact: one fact before and after an edit, as one HTML file")
class Job(StoreJob):
    """Explains the first fact of the data by the editor that ``editor=`` names, and writes its page."""

    def run(self, config: DictConfig) -> None:
        """Writes the page. Raises ValueError: the file is no HTML file; or as `explain` says."""
        asked, settings = check(PageSettings, config.job), check(ExplainSettings, config.job)
        path = html_path(asked.file)
        editor, facts = instantiate_editor(config.editor), list(read_data(config.data))
        found = explain(load_model(config), facts[0], editor, settings)
        found.write(path)
        if asked.data is not None:
            found.save(expanded(asked.data))
        if len(facts) > 1:
            say(f"the page is of the first of {len(facts)} facts; data.offset= chooses another")
        if found.error:
            say(f"the edit failed: {found.error}")
        say(f"the page of {facts[0].id} is {path}")
