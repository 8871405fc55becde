"""The tables of docs/leaderboard.md: which editors run on which model, on which facts, and in which mode."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from yardsticks import SMALLEST

DATA = {"counterfact": "counterfact.json", "zsre": "zsre.json"}
NO_BOUND = "its bound is that of the literature, which was chosen for another model"
SAME_FIRST = "without earlier edits it is memit"
ON_REQUEST = {  # by editor and mode why it is run there only if it is asked for (--only)
    "in_context": {"batch": "all statements before every prompt make it very long"},
    "ft_l": dict.fromkeys(("single", "batch"), NO_BOUND),
    "memit_plain": dict.fromkeys(("single", "batch"), SAME_FIRST),
    "update_neurons": {"batch": "the neurons are located fact by fact, as in single mode"},
}
# The controls first: they take least time, and all others are compared with them.
TABLE: tuple[str, ...] = (  # the configurations in the tables, as `editor=` takes them: one more is one more name
    *("none", "in_context", "finetune", "crispedit", "ft_l", "rome", "random", "memit", "memit_plain", "memit_blue"),
    *("memit_rounds", "alphaedit", "alphaedit_blue", "emmet", "pmet", "ultraedit", "grace", "grace_wide", "scoped"),
    *("retrieval", "memoir", "t_patcher", "wise_whitened", "wise_paper", "update_neurons"),
)


def left_out(editor: str, mode: str) -> str:
    """Why an editor is not run in a mode; empty where it is."""
    return ON_REQUEST.get(editor, {}).get(mode, "")


@dataclass(frozen=True)
class Part:
    """A table."""

    model: str  # its configuration, as `model=` takes it
    data: str
    mode: str
    facts: int = 100  # so many, the first of the data set
    # Its editors' configurations, with what differs from these here; none named: all of `TABLE`.
    editors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    neighbours: int | None = None  # so many neighbourhood prompts of each fact are scored; None for all
    settings: tuple[str, ...] = ("eval.max_new_tokens=20",)  # of all its runs; the answers are names, so they are short

    @property
    def of(self) -> tuple[str, str, str]:
        """What a table is of."""
        return self.model, self.data, self.mode

    @property
    def entries(self) -> tuple[str, ...]:
        """The configurations of its editors."""
        return tuple(editor for editor in TABLE if not self.editors or editor in self.editors)

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
