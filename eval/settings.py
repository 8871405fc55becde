"""`EvalSettings`: what is measured, and how far."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from annotated_types import Ge, Lt

from corrigenda.errors import SettingsError
from corrigenda.settings.checked import AtLeastOne, Count, Seed, checked
from eval.real_use.settings import RealUse
from eval.records import QUESTION_KIND, RECORD_OF, SIDE_KINDS

AFTER_AN_EDIT = frozenset({"harness_folder", "harness_limit", "harness_tasks", "perplexity_sample", "strict"})
"""The settings of what is measured of an edited model alone, or apart from the facts."""


@dataclass(frozen=True)
@checked
class EvalSettings:
    """What is measured, and how far.

    Attributes:
        generate: whether to let the model answer freely (free-generation accuracy, preservation, fluency): the
            expensive part.
        max_new_tokens: the longest free answer, where no target is longer: each has room in it.
        preservation_tokens: how many tokens the model goes on for where its answer should stay, end tokens barred: all
            of them have to be the same to count as preserved. (Fifty tokens of small talk differ after any change at
            all; what the answer is shows in its first few.)
        fluency_tokens: the length of the sampled text whose fluency is measured; at least 3, for a 3-gram.
        perplexity_windows: how many windows of the held-out texts are read, at least 3 (one of each text); 0 for no
            perplexity.
        perplexity_window: the tokens of a window.
        perplexity_sample: so many of the windows are read after each of many edits that are measured one by one; they
            take turns. What is unedited is read once, on all of them, and so are models that are measured once.
        max_tokens: tokens run at once.
        seed: for the sampled text.
        harness_tasks: tasks of the lm-evaluation-harness, for `eval.lm_eval.harness`: not measured fact by fact.
        harness_folder: a folder with task files of your own.
        harness_limit: the most examples of each task; None for all.
        side_effects: whether to measure what an edit should not do: negations, fact-check questions, reversed
            questions and other prompts about the subject (`corrigenda.data.side_effects`); about twenty prompts more a
            fact. Other figures stay as they are.
        real_use: how questions are asked as a person asks them; None: they are not, nor without `generate`.
        strict: whether an edit is refused, and counts as failed, that disturbs other texts beyond a bound
            (`corrigenda.disturbance`). Without it there is a warning, and it is in the edit's report.
        only: the kinds of prompts that are measured (prompt, paraphrases, neighbourhood, ...); none named: all.
    """

    generate: bool = True
    max_new_tokens: AtLeastOne = 50
    preservation_tokens: AtLeastOne = 10
    fluency_tokens: Annotated[int, Ge(3), Lt(2**63)] = 50
    perplexity_windows: Count = 64
    perplexity_window: Annotated[int, Ge(2), Lt(2**63)] = 64
    perplexity_sample: AtLeastOne = 8
    max_tokens: AtLeastOne = 4096
    seed: Seed = 0
    harness_tasks: tuple[str, ...] = ()
    harness_folder: str | None = None
    harness_limit: AtLeastOne | None = None
    side_effects: bool = False
    real_use: RealUse | None = None
    strict: bool = False
    only: tuple[str, ...] = ()

    @property
    def without(self) -> frozenset[str]:
        """The kinds of prompts that are left out."""
        not_asked = frozenset(RECORD_OF).difference(self.only) if self.only else frozenset[str]()
        return not_asked if self.side_effects else not_asked | SIDE_KINDS

    @property
    def before_an_edit(self) -> dict[str, Any]:
        """By name those that can change what is measured of the unedited model."""
        found = {name: value for name, value in asdict(self).items() if name not in AFTER_AN_EDIT}
        if self.real_use is not None:
            found["real_use"]["judge"] = self.real_use.judge.identity
        return found

    def __post_init__(self) -> None:
        if 0 < self.perplexity_windows < 3:
            raise SettingsError(
                f"EvalSettings: perplexity_windows={self.perplexity_windows} must be 0, for no perplexity, or at least "
                "3: one of each held-out text"
            )
        if unknown := [kind for kind in self.only if kind not in RECORD_OF]:
            raise SettingsError(
                f"EvalSettings: only: {unknown[0]!r} is no kind of prompt; the kinds are {', '.join(RECORD_OF)}"
            )
        if QUESTION_KIND in self.only:
            raise SettingsError(
                "EvalSettings: only: questions are made of other kinds: name these (prompt, paraphrases), with real_use"
            )
        if not self.side_effects and (sides := SIDE_KINDS.intersection(self.only)):
            raise SettingsError(f"EvalSettings: only: {min(sides)} is measured where side_effects=true; give that, too")
