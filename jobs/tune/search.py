"""Which settings are tried next.

An *axis* is one thing that is tuned, with a range. Trial 0 has the settings that the editor has already. Where tracing
found layers, trial 1 has these. All others are drawn by Optuna's tree-structured Parzen estimator (Bergstra et al.
2011), given all trials before. It is rebuilt from the records of these trials each time, with a seed of the trial's
own: so a run that was stopped, and one that was not, try the same.

An axis may leave solved targets as they are (`Axis.after_targets`). After each trial with new ones come `SHARING`
trials in which such axes alone are moved away from the best trial: these find their targets on the disk.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from corrigenda import LanguageModel
from corrigenda.errors import SettingsError
from editing.spaces import Space
from jobs.shared.tuned import is_named

if TYPE_CHECKING:
    import optuna

SHARING = 2
"""Trials on the targets of the best one, after each with targets of its own."""

RANDOM = 4
"""Before so many trials have figures, settings are drawn at random."""

MOST_LAYERS = 8
"""An editor that writes several layers is tried with so many at most."""

ATTEMPTS = 20
"""So often other settings are drawn where the same were tried already."""

LAYER, NUMBER = "layer", "number"
"""The axes of layers: the layer, or the last of several; and how many."""


@dataclass(frozen=True)
class Axis:
    """One thing that is tuned, by its name: `LAYER`, `NUMBER`, or the setting's dotted name.

    It begins at `start`, the value that the editor has. With `log` factors matter, and not differences; `whole` values
    are whole numbers; `after_targets` says that solved targets do not depend on it.
    """

    name: str
    low: float
    high: float
    start: float
    log: bool = False
    whole: bool = False
    after_targets: bool = False


@dataclass(frozen=True)
class Proposal:
    """What to try next: by axis its value, and where they come from, for the page."""

    params: Mapping[str, float]
    why: str


def axes_of(
    space: Space, editor: Any, lm: LanguageModel, traced: Sequence[int], fixed: Sequence[str] = ()
) -> tuple[Axis, ...]:
    """What is tuned of an editor in a model, but for the settings `fixed`.

    Layers are looked for around the default and around those that tracing found (the best one first): a tenth of the
    depth to either side, and a sixth where nothing was traced. A range always holds the value that the editor has.
    """
    axes: list[Axis] = []
    if space.layers != "none" and not {"layer", "layers", "depth"} & set(fixed):
        axes += _of_layers(space, editor, lm, traced, fixed)
    for number in space.numbers:
        start = _value(editor, number.setting)
        # null: another setting takes its place
        if is_named(number.setting, fixed) or start is None or not number.matters(editor):
            continue
        low, high = number.bounds(type(editor))
        axes.append(
            Axis(
                number.setting,
                min(low, start),
                max(high, start),
                start,
                number.log,
                after_targets=number.after_targets,
            )
        )
    return tuple(axes)


def _of_layers(
    space: Space, editor: Any, lm: LanguageModel, traced: Sequence[int], fixed: Sequence[str]
) -> Iterator[Axis]:
    default = editor.resolved_layer(lm) if space.layers == "one" else editor.resolved_layers(lm)[-1]
    top = max(lm.n_layers - 2, default)  # no later layer reads what the last one is made to say at a subject
    around = [default, *(min(layer, top) for layer in traced[:1])]
    spread = max(round(lm.n_layers / (10 if traced else 6)), 1)
    yield Axis(LAYER, max(min(around) - spread, 0), min(max(around) + spread, top), default, whole=True)
    if space.layers == "several":
        layers = editor.resolved_layers(lm)
        # BLUE writes two, the ends of so many, and its lowest has a target of its own, which goes with the layer.
        ends_only = bool(getattr(editor, "ends_only", False))
        number = layers[-1] - layers[0] + 1 if ends_only else len(layers)
        least, most = (number, number) if NUMBER in fixed else (1, min(max(MOST_LAYERS, number), top + 1))
        yield Axis(NUMBER, least, most, number, whole=True, after_targets=not ends_only)


def _value(editor: Any, setting: str) -> float | None:
    value = editor
    for name in setting.split("."):
        value = getattr(value, name)
    return None if value is None else float(value)


def settings_of(space: Space, params: Mapping[str, float], started: Mapping[str, float]) -> dict[str, Any]:
    """The editor's settings that stand for values of axes, by dotted name; of trial 0 (`started`) none."""
    found = {name: value for name, value in params.items() if name not in (LAYER, NUMBER) and value != started[name]}
    if all(params.get(name) == started.get(name) for name in (LAYER, NUMBER)):
        return found
    if space.layers == "one":
        return {"layer": int(params[LAYER])} | found
    last, number = int(params[LAYER]), int(params[NUMBER])
    return {"layers": list(range(max(last - number + 1, 0), last + 1))} | found


def start_of(axes: Sequence[Axis]) -> dict[str, float]:
    """The values of trial 0."""
    return {axis.name: axis.start for axis in axes}


def propose(
    axes: Sequence[Axis], trials: Sequence[Mapping[str, Any]], traced: Sequence[int], seed: int
) -> Proposal | None:
    """What to try after the trials so far, by their "params" and "value"; None where all that there is was tried.

    Raises SettingsError: Optuna is not installed.
    """
    if not trials:
        return Proposal(start_of(axes), "the settings that it has")
    if not axes:
        return None
    tried = [dict(trial["params"]) for trial in trials]
    guess = _guess(axes, traced)
    if guess is not None and guess not in tried:
        return Proposal(guess, "the layers where tracing finds the facts")
    drawn = len(trials) - 1 - (guess is not None)
    free = [axis.name for axis in axes if axis.after_targets]
    best = best_of(trials)
    shares = bool(free) and len(free) < len(axes) and best is not None and drawn % (SHARING + 1) != 0
    for attempt in range(ATTEMPTS):
        sharing = shares and attempt < ATTEMPTS // 2
        fixed = {n: v for n, v in best["params"].items() if n not in free} if sharing and best is not None else {}
        params = _drawn(axes, trials, fixed, (seed * 1000 + len(trials)) * ATTEMPTS + attempt)
        if params not in tried:
            told = f"drawn, with the targets of trial {best['number']}" if fixed and best is not None else "drawn"
            return Proposal(params, told)
    return None


def best_of(trials: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The trial of the highest value, of several equal ones the first; None where none has a value."""
    known = [trial for trial in trials if trial["value"] is not None]
    return max(known, key=lambda trial: float(trial["value"]), default=None)


def _guess(axes: Sequence[Axis], traced: Sequence[int]) -> dict[str, float] | None:
    """Trial 0 with the layers that tracing found: several ones around the best of them; None where that is trial 0."""
    layer = next((axis for axis in axes if axis.name == LAYER), None)
    if layer is None or not traced:
        return None
    start = start_of(axes)
    last = traced[0] + int(start.get(NUMBER, 1)) // 2
    guess = start | {LAYER: min(max(float(last), layer.low), layer.high)}
    return None if guess == start else guess


def _drawn(
    axes: Sequence[Axis], trials: Sequence[Mapping[str, Any]], fixed: Mapping[str, float], seed: int
) -> dict[str, float]:
    with _quiet() as optuna:
        sampler = optuna.samplers.TPESampler(seed=seed % 2**32, n_startup_trials=RANDOM)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for trial in trials:
            if trial["value"] is not None:
                study.enqueue_trial(dict(trial["params"]))
                asked = study.ask()
                _suggested(asked, axes)
                study.tell(asked, float(trial["value"]))
        if fixed:
            study.enqueue_trial(dict(fixed))
        return _suggested(study.ask(), axes)


def _suggested(trial: optuna.Trial, axes: Sequence[Axis]) -> dict[str, float]:
    """A value for each axis; numbers of three digits, which are as good, and can be read."""
    found: dict[str, float] = {}
    for axis in axes:
        if axis.whole:
            found[axis.name] = trial.suggest_int(axis.name, int(axis.low), int(axis.high))
        else:
            value = trial.suggest_float(axis.name, axis.low, axis.high, log=axis.log)
            found[axis.name] = min(max(float(f"{value:.3g}"), axis.low), axis.high)
    return found


@contextmanager
def _quiet() -> Iterator[Any]:
    """Optuna, without what it tells of its own doings. Raises SettingsError: it is not installed."""
    require_optuna()
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield optuna
    finally:
        optuna.logging.set_verbosity(verbosity)


def require_optuna() -> None:
    """Checks that Optuna is there, or raises SettingsError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # its own, of what it uses of SQLAlchemy
            import optuna  # noqa: F401
    except ImportError:
        raise SettingsError("job=tune needs Optuna: pip install 'corrigenda[optuna]'") from None
