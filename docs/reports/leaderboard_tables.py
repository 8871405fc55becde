"""The tables of docs/leaderboard.md: which editors run on which model, on which facts, and in which mode."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from yardsticks import SMALLEST

DATA = {"counterfact": "counterfact.json", "zsre": "zsre.json"}

NO_BOUND = "its bound is that of the literature, which was chosen for another model"
SAME_FIRST = "without earlier edits it is memit"


class Entry(NamedTuple):
    """An editor in the tables.

    Attributes:
        editor: its configuration, as `editor=` takes it.
        settings: what differs from that.
        on_request: by mode why it is run there only if it is asked for (--only).
    """

    editor: str
    settings: tuple[str, ...] = ()
    on_request: Mapping[str, str] = MappingProxyType({})

    def left_out(self, mode: str) -> str:
        """Why it is not run in a mode; empty where it is."""
        return self.on_request.get(mode, "")


# The controls first: they take least time, and all others are compared with them.
TABLE: tuple[Entry, ...] = (  # the editors in the tables: one more is one more line
    Entry("none"),
    Entry("in_context", on_request={"batch": "all statements before every prompt make it very long"}),
    Entry("finetune"),
    Entry("crispedit"),
    Entry("ft_l", on_request={"single": NO_BOUND, "batch": NO_BOUND}),
    Entry("rome"),
    Entry("random"),
    Entry("memit"),
    Entry("memit_plain", on_request={"single": SAME_FIRST, "batch": SAME_FIRST}),
    Entry("memit_blue"),
    Entry("memit_rounds"),
    Entry("alphaedit"),
    Entry("alphaedit_blue"),
    Entry("emmet"),
    Entry("pmet"),
    Entry("ultraedit"),
    Entry("grace"),
    Entry("grace_wide"),
    Entry("scoped"),
    Entry("retrieval"),
    Entry("memoir"),
    Entry("t_patcher"),
    Entry("wise_whitened"),
    Entry("wise_paper"),
    Entry("update_neurons", on_request={"batch": "the neurons are located fact by fact, as in single mode"}),
)


@dataclass(frozen=True)
class Part:
    """A table.

    Attributes:
        model: its configuration, as `model=` takes it.
        data: the data set.
        mode: single or batch.
        facts: so many, the first of the data set.
        editors: their configurations, with what differs from these here; none named: all of `TABLE`.
        neighbours: so many neighbourhood prompts of each fact are scored; None for all.
        settings: of all its runs.
    """

    model: str
    data: str
    mode: str
    facts: int = 100
    editors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    neighbours: int | None = None
    settings: tuple[str, ...] = ("eval.max_new_tokens=20",)  # the answers are names, so they are short

    @property
    def of(self) -> tuple[str, str, str]:
        """What a table is of."""
        return self.model, self.data, self.mode

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Its editors."""
        return tuple(entry for entry in TABLE if not self.editors or entry.editor in self.editors)

    @property
    def yardstick(self) -> str:
        """The name of its facts on docs/yardsticks.md."""
        return f"{self.model} {self.data} 1-{self.facts}"


OF_SINGLE = ("eval.perplexity_sample=2",)
"""The drift is measured after every edit, so each time of few windows, in turn."""
SHORT = ("eval.max_new_tokens=10", "eval.perplexity_windows=16")
"""As on docs/real-models.md: a larger model takes longer."""
SHIPPED = ("editor.text.source=shipped",)  # sampling so much text from a larger model takes most of an hour
LARGER = {
    **dict.fromkeys(("none", "finetune", "random", "ultraedit", "grace_wide", "scoped"), ()),
    **dict.fromkeys(("rome", "memit", "memit_rounds", "alphaedit", "emmet"), SHIPPED),
    "wise_whitened": (*SHIPPED, "editor.unrelated.text.source=shipped"),
}
SINGLY = {**dict.fromkeys(("none", "in_context", "finetune", "grace_wide"), ()), "rome": SHIPPED, "memit": SHIPPED}

PARTS: tuple[Part, ...] = (  # the tables, in their order: one more is one more line
    Part(SMALLEST, "counterfact", "single", settings=("eval.max_new_tokens=20", *OF_SINGLE)),
    Part(SMALLEST, "counterfact", "batch"),
    Part(SMALLEST, "zsre", "single", settings=("eval.max_new_tokens=20", *OF_SINGLE)),
    Part(SMALLEST, "zsre", "batch"),
    Part("qwen2.5-coder-0.5b", "counterfact", "batch", 40, LARGER, 5, SHORT),
    Part("qwen2.5-coder-0.5b", "counterfact", "single", 40, SINGLY, 5, (*SHORT, *OF_SINGLE)),
)
MODELS = tuple(dict.fromkeys(part.model for part in PARTS))
