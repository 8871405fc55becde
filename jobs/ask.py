"""``job=ask``: what the model says to a prompt, without and with an edit, side by side."""

from __future__ import annotations

from contextlib import ExitStack

from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table
from rich.text import Text

from corrigenda.texts import printable
from jobs.job import StoreJob
from jobs.saved_edits import model_of, read_edits
from jobs.settings import AskSettings, check


class Job(StoreJob):
    """Asks the model, and the edited one."""

    def run(self, config: DictConfig) -> None:
        """Prints the answers: greedy continuations, as `LanguageModel.generate` gives them."""
        asked = check(AskSettings, config.job)
        edits = read_edits(asked.edit)
        lm = model_of(config, edits)
        prompts = [asked.prompt] if isinstance(asked.prompt, str) else list(asked.prompt)
        printer = Console()  # prompts and answers are printed as texts: what is in square brackets is no style
        before = lm.generate(prompts, asked.max_new_tokens)
        if not edits:
            for prompt, answer in zip(prompts, before, strict=True):
                printer.print(Text(printable(f"{prompt}{answer}", lines=True)), soft_wrap=True)
            return
        with ExitStack() as applied:
            for edit in edits:
                applied.enter_context(edit.applied(lm))
            after = lm.generate(prompts, asked.max_new_tokens)
        table = Table("prompt", "before", "after", title=Text(lm.name), title_justify="left", show_lines=True)
        for row in zip(prompts, before, after, strict=True):
            table.add_row(*(Text(printable(text.strip(), lines=True)) for text in row))
        printer.print(table)
        for edit in edits:
            printer.print(Text(edit.describe()), soft_wrap=True)
