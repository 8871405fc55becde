"""``job=ask``: what the model says to a prompt, without and with an edit, side by side."""

from dataclasses import dataclass
from typing import ClassVar

from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table
from rich.text import Text

from corrigenda.edits.edit import all_applied
from corrigenda.errors import SettingsError
from corrigenda.settings.checked import AtLeastOne, checked
from corrigenda.text.display import printable
from jobs.shared.job import StoreJob
from jobs.shared.registry import register
from jobs.shared.saved_edits import model_of, read_edits
from jobs.shared.settings import check


@dataclass(frozen=True)
@checked
class AskSettings:
    """``job=ask``: ``corrigenda ask "The Eiffel Tower is in the city of" edit=FOLDER``.

    Attributes:
        prompt: a prompt, or a list of them.
        edit: the folder of a saved edit, or of a run with one; [first, second]: one on top of the other.
        max_new_tokens: of an answer.
    """

    group: ClassVar[str] = "job"

    prompt: str | tuple[str, ...]
    edit: str | tuple[str, ...] | None = None
    max_new_tokens: AtLeastOne = 20

    def __post_init__(self) -> None:
        if not self.prompt or not all(map(str.strip, [self.prompt] if isinstance(self.prompt, str) else self.prompt)):
            raise SettingsError(f"job.prompt={self.prompt!r} must not be empty")


@register("ask", AskSettings, aim="ask the model, without and with an edit")
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
        with all_applied(edits, lm):
            after = lm.generate(prompts, asked.max_new_tokens)
        table = Table("prompt", "before", "after", title=Text(lm.name), title_justify="left", show_lines=True)
        for row in zip(prompts, before, after, strict=True):
            table.add_row(*(Text(printable(text.strip(), lines=True)) for text in row))
        printer.print(table)
        for edit in edits:
            printer.print(Text(edit.describe()), soft_wrap=True)
