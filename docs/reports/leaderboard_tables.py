"""The tables of docs/leaderboard.md: which editors run on which model, on which facts, and in which mode."""

from dataclasses import dataclass

from yardsticks import SMALLEST

DATA = {"counterfact": "counterfact.json", "zsre": "zsre.json"}
NO_BOUND = "its bound is that of the literature, which was chosen for another model"
NO_NETWORK = "its network has to be trained for the model first (`corrigenda train`)"
SAME_FIRST = "without earlier edits it is memit"
LEARNED = ("mend", "malmen", "serac")
ON_REQUEST = {  # by editor and mode why it is run there only if it is asked for (--only)
    "in_context": {"batch": "all statements before every prompt make it very long"},
    "ft_l": dict.fromkeys(("single", "batch"), NO_BOUND),
    "memit_plain": dict.fromkeys(("single", "batch"), SAME_FIRST),
    **{editor: dict.fromkeys(("single", "batch"), NO_NETWORK) for editor in LEARNED},
    "update_neurons": {"batch": "the neurons are located fact by fact, as in single mode"},
}
# The controls first: they take least time, and all others are compared with them.
TABLE: tuple[str, ...] = (  # the configurations in the tables, as `editor=` takes them: one more is one more name
    *("none", "in_context", "finetune", "crispedit", "ft_l", "rome", "random", "memit", "memit_plain", "memit_blue"),
    *("memit_rounds", "alphaedit", "alphaedit_blue", "emmet", "pmet", "ultraedit", "grace", "grace_wide", "scoped"),
    *("retrieval", "memoir", "t_patcher", "lora", "melo", "wise_whitened", "wise_paper", "update_neurons"),
    *LEARNED,
)
SHORT = ("eval.max_new_tokens=10", "eval.perplexity_windows=16")
"""As on docs/real-models.md: the answers are names."""
OF_SINGLE = ("eval.perplexity_sample=2",)
"""The drift is measured after every edit, so each time of few windows, in turn."""


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
    editors: tuple[str, ...] = TABLE  # the configurations of its editors
    neighbours: int | None = None  # so many neighbourhood prompts of each fact are scored; None for all
    settings: tuple[str, ...] = SHORT  # of all its runs

    @property
    def of(self) -> tuple[str, str, str]:
        """What a table is of."""
        return self.model, self.data, self.mode

    @property
    def yardstick(self) -> str:
        """The name of its facts on docs/yardsticks.md."""
        return f"{self.model} {self.data} 1-{self.facts}"


ONCE = ("none", "finetune", "rome", "random", "memit", "alphaedit", "emmet", "grace_wide", "scoped")
"""What is run on a larger model, all facts in one edit."""
FEWER = {"counterfact": 5, "zsre": None}  # neighbourhood prompts of a fact; zsRE's have none
MORE = (
    *(*ONCE, "memit_rounds", "ultraedit", "wise_whitened", "retrieval", "memoir", "t_patcher", "lora", "melo"),
    *LEARNED,
)
SINGLY = (*ONCE, "memit_rounds", "in_context", "ultraedit", "wise_whitened")
SINGLY_OF_SMALLEST = (*SINGLY, "grace", "wise_paper")
PARTS: tuple[Part, ...] = (  # the tables, in their order: one more is one more line
    *(Part(SMALLEST, data, "batch", 100, TABLE, n) for data, n in FEWER.items()),
    *(Part(SMALLEST, data, "single", 40, SINGLY_OF_SMALLEST, n, (*SHORT, *OF_SINGLE)) for data, n in FEWER.items()),
    *(Part("qwen2.5-coder-0.5b", data, "batch", 100, MORE, n) for data, n in FEWER.items()),
    *(Part("qwen2.5-coder-0.5b", data, "single", 40, SINGLY, n, (*SHORT, *OF_SINGLE)) for data, n in FEWER.items()),
    Part("qwen2.5-coder-1.5b", "counterfact", "batch", 30, ONCE, 5),
)
MODELS = tuple(dict.fromkeys(part.model for part in PARTS))
