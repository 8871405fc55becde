"""What docs/many_facts.md runs: its data sets, its methods, which of them are compared, and what was asked of them."""

from typing import NamedTuple

DATA: dict[str, tuple[str, str]] = {
    "counterfact": ("counterfact.json", "score"),
    "zsre": ("zsre.json", "paraphrase_free_generation_strict"),
}  # by name the file, and the metric by which methods are compared (as on the leaderboard)


class Method(NamedTuple):
    """A row of the tables: its title, with the ratio that the first four trials chose, and what runs it."""

    title: str
    editor: str  # its configuration, as `editor=` takes it
    settings: tuple[str, ...] = ()  # what differs from that, and from the protocol of this page
    closed: bool = False  # whether it takes targets of the unedited model, so that others like it find them on the disk
    control: bool = False  # a control, for which other orders say nothing
    afterwards: bool = False  # whether its settings were thought of when the others' figures were known
    like: str = ""  # the method the size of whose updates it takes
    tuned_as: str = ""  # the method whose settings were chosen for it, too; by default its own


def later(title: str, *settings: str, editor: str = "memit") -> Method:
    """A closed form whose settings were thought of when the figures of the others were known."""
    return Method(title, editor, settings, closed=True, afterwards=True)


RATIO_10 = "editor.ratio=10"
LONGER = ("editor.value.steps=40", "editor.value.clamp_norm_factor=1.5")
TOGETHER = ("job.sequential.regime=together", "job.sequential.batch=1")
AT_ONCE = (*LONGER, *TOGETHER)
FEW_STEPS = "editor.value.steps=20"
"""As many as the papers': with what ships (40) all targets would have to be solved for again."""
WISE = ("editor.edits_per_shard={t}", "editor.unrelated.facts={others}")
METHODS: dict[str, Method] = {  # the methods, those first whose targets are found on the disk by others
    "none": Method("no edit", "none", control=True),
    "memit": Method("MEMIT 0.1", "memit", closed=True),
    "memit_plain": Method("plain MEMIT 0.1", "memit_plain", closed=True, tuned_as="memit"),
    "memit_blue": Method("MEMIT-BLUE 0.1", "memit_blue", closed=True, tuned_as="memit"),
    "alphaedit": Method("AlphaEdit 0.1", "alphaedit", closed=True),
    "emmet": Method("EMMET", "emmet", closed=True),
    "pmet": Method("PMET", "pmet", closed=True),
    "memit_anew": Method("MEMIT, targets anew", "memit", (FEW_STEPS,), tuned_as="memit"),
    "memit_ratio_1": later("MEMIT 1", "editor.ratio=1"),
    "memit_ratio_10": later("MEMIT 10", RATIO_10),
    "memit_plain_ratio_10": later("plain MEMIT 10", RATIO_10, editor="memit_plain"),
    "memit_longer": later("MEMIT longer", RATIO_10, *LONGER),
    "memit_together": later("MEMIT 10, at once", RATIO_10, *TOGETHER),
    "memit_longer_together": later("MEMIT longer, at once", RATIO_10, *AT_ONCE),
    "memit_rounds_together": later("MEMIT three rounds", *AT_ONCE, editor="memit_rounds"),
    "memit_four_rounds_together": later("MEMIT four rounds", "editor.rounds=4", *AT_ONCE, editor="memit_rounds"),
    "alphaedit_ratio_1": later("AlphaEdit 1", "editor.energy=0.3", "editor.ratio=1", editor="alphaedit"),
    "ultraedit": Method("UltraEdit", "ultraedit"),
    "crispedit": Method("CrispEdit", "crispedit"),
    "rome": Method("ROME", "rome"),
    "finetune": Method("FT, at once", "finetune", TOGETHER),
    "wise_whitened": Method("WISE, whitened", "wise_whitened", WISE),
    "random": Method("random", "random", control=True, like="rome"),
}


class Pair(NamedTuple):
    """Two methods to compare, of which `of_later_batches` says that only what later batches know makes them differ."""

    left: str
    right: str
    of_later_batches: bool = False


PAIRS = (  # the planned comparisons
    Pair("memit", "memit_plain", of_later_batches=True),
    Pair("memit_ratio_10", "memit_plain_ratio_10", of_later_batches=True),
    Pair("memit", "alphaedit"),
    Pair("memit_blue", "memit"),
    Pair("memit_ratio_10", "memit"),
    Pair("memit_together", "memit_ratio_10", of_later_batches=True),
    Pair("memit_longer_together", "memit_longer", of_later_batches=True),
    Pair("memit_rounds_together", "memit_longer_together"),
    Pair("memit_four_rounds_together", "memit_rounds_together"),
)
Wanted = tuple[str, str, float]
AIMS: dict[str, dict[int, tuple[Wanted, ...]]] = {
    "counterfact": {
        300: (
            ("efficacy_success", ">=", 0.97),
            ("paraphrase_success", ">=", 0.85),
            ("neighbourhood_success", "before -", 0.05),
            ("perplexity_drift", "<=", 0.1),
        ),
        1000: (("efficacy_success", ">=", 0.9), ("paraphrase_success", ">=", 0.75), ("perplexity_drift", "<=", 0.3)),
    },
    "zsre": {
        300: (
            ("token_accuracy", ">=", 0.9),
            ("paraphrase_token_accuracy", ">=", 0.75),
            ("free_generation_strict", ">=", 0.7),
        )
    },
}  # what was asked of the best closed form beforehand: ">=", "<=", or at least the figure "before" less so much
