"""What the command line says of tuning."""

import re
from dataclasses import dataclass
from typing import ClassVar

from corrigenda.errors import SettingsError
from corrigenda.settings.checked import AtLeastOne, Count, NotNegative, Positive, Seed, checked
from jobs.shared.errors import ROOT


@dataclass(frozen=True)
@checked
class TuneSettings:
    """``job`` where it is ``tune``.

    Attributes:
        trials: how many settings are tried, those that the editor has already among them.
        minutes: no trial is begun that would last beyond this; None for no such bound. The time counts that all parts
            of a run took that was stopped and went on.
        metrics: what is tuned for: the harmonic mean of these shares; empty: by the data set (`jobs.tune.objective`).
        most_drift: the perplexity drift in nats that settings may cost; None for no bound.
        most_lost: so much less than with the settings that the editor has may be the share of facts that hold
            (`jobs.tune.objective`); None for no bound.
        traced: so many facts that the model knows are traced, to say where to look for layers; 0 for none.
        model: the name that the tuned model gets in ``conf/model``; None: the model's, with "-tuned".
        conf: the folder of configurations that it is written into; None: ``conf`` in the run's folder.
        seed: for the settings that are tried.
    """

    group: ClassVar[str] = "job"

    trials: AtLeastOne = 12
    minutes: Positive | None = None
    metrics: tuple[str, ...] = ()
    most_drift: NotNegative | None = 0.1
    most_lost: NotNegative | None = 0.05
    traced: Count = 3
    model: str | None = None
    conf: str | None = None
    seed: Seed = 0

    def __post_init__(self) -> None:
        if self.model is None:
            return
        if re.fullmatch(r"[A-Za-z0-9_.-]+", self.model) is None:  # what `model=` reads as it stands
            raise SettingsError(f"job.model={self.model!r} becomes the name of a file: a to z, digits, '-', '_', '.'")
        if (ROOT / "conf" / "model" / f"{self.model}.yaml").is_file():
            raise SettingsError(
                f"job.model={self.model}: model={self.model} is this project's own, which goes before a tuned one; "
                "give another name"
            )
