"""``job=explain``: the page of a fact, before and after an edit."""

from __future__ import annotations

from omegaconf import DictConfig

from corrigenda.files import expanded
from jobs.base import load_model, say
from jobs.data import read_data
from jobs.explaining.explanation import explain, html_path
from jobs.explaining.settings import ExplainSettings
from jobs.job import StoreJob
from jobs.settings import PageSettings, check, made_editor


class Job(StoreJob):
    """Explains the first fact of the data by the editor that ``editor=`` names, and writes its page."""

    def run(self, config: DictConfig) -> None:
        """Writes the page.

        Raises:
            ValueError: the file is no HTML file; or as `explain` says.
        """
        asked, settings = check(PageSettings, config.job), check(ExplainSettings, config.job)
        path = html_path(asked.file)
        editor, facts = made_editor(config.editor), list(read_data(config.data))
        found = explain(load_model(config), facts[0], editor, settings)
        found.write(path)
        if asked.data is not None:
            found.save(expanded(asked.data))
        if len(facts) > 1:
            say(f"the page is of the first of {len(facts)} facts; data.offset= chooses another")
        if found.error:
            say(f"the edit failed: {found.error}")
        say(f"the page of {facts[0].id} is {path}")
