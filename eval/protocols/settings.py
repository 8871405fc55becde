"""`SequentialSettings`: how a sequence of edits is made and scored."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Lt

from corrigenda.errors import SettingsError
from corrigenda.settings.checked import AtLeastOne, Count, NotNegative, Seed, Share, checked
from eval.protocols.fine_tuning import FineTuningSettings

Regime = Literal["auto", "stack", "extend", "together"]


@dataclass(frozen=True)
@checked
class CollapseStopSettings:
    """At which figures of a checkpoint a sequence is stopped; None, for each: never.

    A figure with a limit that cannot be computed at a checkpoint (the model gives no numbers any more, or the text that
    edits put before a prompt leaves no room for a window) stops it, too.

    Attributes:
        perplexity_drift: it is above so many nats.
        reliability: the token accuracy of the edits so far is below this share.
        harness_drop: the accuracy of one of the harness's tasks has fallen by more than so many points, of 100.
    """

    perplexity_drift: NotNegative | None = None
    reliability: Share | None = None
    harness_drop: Annotated[float, Ge(0), Lt(100)] | None = None


@dataclass(frozen=True)
@checked
class SequentialSettings:
    """How a sequence of edits is made and scored.

    Attributes:
        checkpoints: after how many edits all of them are scored: those below the number of facts, and that number.
        every: after how many edits what was done is written down, so that a killed run goes on from there.
        regime: how the edits come together. "stack": each fact is edited on the model as the earlier edits left it, and
            its edit put on top; "extend": the editor's own `extend` goes on from its edit of the earlier facts (side
            memories); "together": at each checkpoint all facts so far are edited at once, from the unedited model;
            "auto": "extend" where the editor has it, else "stack".
        after_each: what is measured of a fact right after its edit: all ("full"), only what follows from probabilities
            ("probabilities"), or that of the edited prompt alone ("edited"). It adds up: this is done after every edit.
        generate_until: beyond so many edits the checkpoints measure no free generation of the edits; None: all do.
        chunk: facts measured together.
        batch: facts that are edited in one call. A batch is edited on the model as the earlier ones left it, by
            `regime`; of its requests the last on each thing is made. A checkpoint inside a batch is moved to its end.
        scored: the most facts that are scored at a checkpoint; None: all whose request is in force.
        scored_are: which: the first half and the latest half of them ("ends"), or a sample that is drawn by `seed` and
            stays the same from one checkpoint to the next, as far as it can ("sample").
        seed: for that sample.
        ends: how many of the first and of the latest requests are told of apart, as ``first`` and ``latest``.
        keep_edits: whether the edits in force at every checkpoint stay on the disk, to be measured again
            (`eval.protocols.kept`).
        harness_at: the checkpoints at which the harness's tasks (`EvalSettings.harness_tasks`) are run, besides the
            last; None: all.
        collapse_stop: when the sequence is stopped.
        fine_tuning: how it is fine-tuned on unrelated text after the last edit, to see what of the edits survives it.
    """

    checkpoints: tuple[AtLeastOne, ...] = (1, 10, 30, 100, 300, 1000)
    every: AtLeastOne = 10
    regime: Regime = "auto"
    after_each: Literal["full", "probabilities", "edited"] = "full"
    generate_until: Count | None = None
    chunk: AtLeastOne = 10
    batch: AtLeastOne = 1
    scored: Annotated[int, Ge(2), Lt(2**63)] | None = None
    scored_are: Literal["ends", "sample"] = "ends"
    seed: Seed = 0
    ends: AtLeastOne = 100
    keep_edits: bool = False
    harness_at: tuple[AtLeastOne, ...] | None = None
    collapse_stop: CollapseStopSettings = field(default_factory=CollapseStopSettings)
    fine_tuning: FineTuningSettings = field(default_factory=FineTuningSettings)

    def __post_init__(self) -> None:
        object.__setattr__(self, "checkpoints", tuple(sorted(set(self.checkpoints))))
        if self.regime == "together" and self.batch > 1:
            raise SettingsError(
                f"SequentialSettings: batch={self.batch} and regime='together' exclude each other: all facts so far "
                "are one batch there"
            )

    def due(self, n_facts: int) -> list[int]:
        """The T at which `n_facts` facts are scored: the checkpoints, those inside a batch at its end."""
        ends = sorted({self._batch_end(t) for t in self.checkpoints})
        return [t for t in ends if t < n_facts] + [n_facts]

    def moved(self, n_facts: int) -> list[int]:
        """The checkpoints that lie inside a batch, and so are moved to its end."""
        return [t for t in self.checkpoints if t < n_facts and self._batch_end(t) != t]

    def runs_harness(self, t: int, n_facts: int) -> bool:
        """Whether the harness's tasks are run after `t` of `n_facts` edits."""
        moved = None if self.harness_at is None else [self._batch_end(at) for at in self.harness_at]
        return moved is None or t in moved or t == n_facts

    def _batch_end(self, t: int) -> int:
        return -(-t // self.batch) * self.batch
