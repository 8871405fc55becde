"""`ClosedForm`: what all editors share that write many facts by one least-squares problem a layer.

The settings, and what an edit is made of: targets are solved for (`solved`), and layers written (`writing`) by a closed
form (`least_squares`), which is all that an editor of this kind has to say.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from torch import Tensor

from corrigenda import Edit, Fact, LanguageModel, Origin, WeightEdit
from corrigenda.edits.context import TextEdit
from corrigenda.edits.weights import require_writable
from corrigenda.errors import SettingsError, UnsupportedModelError
from corrigenda.moments.experts import Moment
from corrigenda.moments.text import Text
from corrigenda.settings.checked import AtLeastOne, Count, NotNegative, Positive, Seed, Share, checked
from corrigenda.system.workers import Workers
from editing.editor import require_targets
from editing.locate_then_edit.after_treatments import AfterTreatments, anchor_targets
from editing.locate_then_edit.guards import warn_of_load
from editing.locate_then_edit.history import KeyHistory
from editing.locate_then_edit.joined import ClosedFormEdit, Round, edit_of, finish, in_one, require_one_kind
from editing.locate_then_edit.keys import group_weights
from editing.locate_then_edit.moments import moments_of
from editing.locate_then_edit.passes import SubjectRows
from editing.locate_then_edit.replay import replayed
from editing.locate_then_edit.solved import Batch, Solving, batches_of
from editing.locate_then_edit.spread import Rule, spread
from editing.locate_then_edit.targets import Site, ValueSettings
from editing.locate_then_edit.writing import Problem, Solution, Step, Writing, task_of
from editing.shared.contexts import contexts, require_prefixes
from editing.shared.extending import Extendable, check_previous, present, require_shared, state_of
from editing.shared.frames import Frames
from editing.shared.layers import ascending
from editing.shared.together import together


@dataclass(frozen=True)
@checked
class ClosedForm(Extendable[ClosedFormEdit]):
    """An editor that writes many facts at once into the values of several layers.

    Of what an edit needs it keeps the targets on disk (`keep_targets`), the contexts and the second moments; so another
    closed form on the same facts costs the solutions of its systems and no more.

    Facts of one call that contradict or repeat one another are sorted out (`editing.shared.together`). A fact whose
    target could not be solved for (it is not finite) is left out, with ``refused`` in its report. Facts of nearly the
    same key, as those about one subject are, are edited and named: by a warning, and by ``alike`` in their reports.

    Attributes:
        name: what results call it.
        layers: the layers to write, in any order: they are written from the bottom; empty for `number` of them, the
            last at `depth`.
        depth: of the last layer, as a share of the model's.
        number: how many layers there are by default.
        ends_only: BLUE (2025): write the first and the last of the layers only, each with its own target and the whole
            residual. Both targets are solved for on the model before the edit.
        site: whose output the targets are; "attention_and_ffn" is PMET's. See `resolved_site`.
        rule: how the residual is spread over the layers (`editing.locate_then_edit.spread`), or "replay"
            (`editing.locate_then_edit.replay`), which gives each layer a target of its own.
        prefix_lengths: pairs (tokens, number) of the contexts (`editing.shared.contexts`). In a key, the bare prompt
            counts as much as all contexts of one pair together, as MEMIT's authors have it.
        prefixes: contexts to use instead; the first should be "" (the bare prompt).
        frames: other forms of the facts that are contexts, too; in a key `frames.number` of them count as much as the
            bare prompt, and fewer less.
        value: how targets are solved for.
        keep_targets: whether solved targets are kept on disk and taken from there.
        solve_on: in which model targets are solved for when an edit goes on: with what the edit has written so far, or
            without any edit, so that a target does not depend on what came before it and is found on disk.
        rounds: how often the facts are written. From the second time on their targets are solved for on the model with
            what was written so far, which makes up for what the facts did to one another's prompts. No paper has it:
            an editor that does it has a name of its own (`memit_rounds`).
        workers: the processes in which targets are solved for.
        after: what is done to targets and updates after they are solved for.
        text: over which text C is taken.
        tokens_per_coefficient: the text has at least so many tokens for each of the layer's coefficients; 0 for the
            text as it is; None for 24 of the text that ships, and 8 of any other.
        ridge: is added to C's diagonal, in units of its mean.
        batch_size: facts whose targets are solved for side by side.
        alike: facts whose keys have this cosine in the metric of C^-1, or more, are named.
        most_per_coefficient: with more facts for each coefficient of a layer there is a warning.
        refuse_norm: an update above so many times the norm of the values that it changes, times the root of the number
            of facts, is refused.
        seed: for the contexts.
    """

    lasting: ClassVar[tuple[str, ...]] = ()
    """The settings that an edit and what goes on from it must share."""
    no_mixture: ClassVar[str] = ""
    """Why a layer that is a mixture of experts is refused, after that word; empty where it is not."""

    name: str = "closed_form"
    layers: tuple[int, ...] = ()
    depth: Share = 0.2
    number: AtLeastOne = 5
    ends_only: bool = False
    site: Site = "block"
    rule: Rule = "even"
    prefix_lengths: tuple[tuple[AtLeastOne, AtLeastOne], ...] = ((10, 5),)
    prefixes: tuple[str, ...] | None = None
    frames: Frames = field(default_factory=Frames)
    value: ValueSettings = field(
        default_factory=lambda: ValueSettings(steps=40, clamp_norm_factor=0.75, confident_steps=6)
    )
    keep_targets: bool = True
    solve_on: Literal["edited", "unedited"] = "edited"
    rounds: AtLeastOne = 1
    workers: Workers = field(default_factory=Workers)
    after: AfterTreatments = field(default_factory=AfterTreatments)
    text: Text = field(default_factory=Text)
    tokens_per_coefficient: Count | None = None
    ridge: NotNegative = 1e-6
    batch_size: AtLeastOne = 8
    alike: Share = 0.9
    most_per_coefficient: Positive = 0.25
    refuse_norm: Positive = 2.0
    seed: Seed = 0

    def __post_init__(self) -> None:
        require_prefixes(self, self.prefixes)
        if self.rule == "replay" and (self.ends_only or self.site == "attention_and_ffn"):
            raise SettingsError(
                f"{type(self).__name__}: rule='replay' gives each layer its target from the first one's; with "
                f"ends_only={self.ends_only} and site={self.site!r} take rule='even'"
            )
        if self.ends_only and self.rule != "even":
            raise SettingsError(
                f"{type(self).__name__}: rule={self.rule!r} spreads a residual over layers, and with ends_only=True "
                "each of the two writes the whole of its own; take rule='even'"
            )

    @abstractmethod
    def solution(self, problem: Problem) -> Solution:
        """One layer's update."""

    def written_keys(self, lm: LanguageModel, layer: int, keys: Tensor) -> Tensor:
        """What a layer's update is to answer to, given the facts' keys there, (fact, d_ffn): these themselves."""
        return keys

    @property
    def keeps_history(self) -> bool:
        """Whether the keys of an update count in later ones that go on from it."""
        return False

    @property
    def when_crowded(self) -> str:
        """What can be done about many facts for each coefficient of a layer; empty where nothing is known."""
        return ""

    def prepare(self, lm: LanguageModel) -> None:
        """Chooses the contexts and takes the second moments, which are kept on disk.

        Raises:
            IndexError: the model has no such layer.
            ValueError: a layer is named twice, or is the last where a block's output is solved for.
        """
        lm.architecture.require_decoder(self.name)
        require_writable(lm, self.resolved_layers(lm))
        self._contexts(lm)
        self.moments(lm)

    @together
    def extend(self, lm: LanguageModel, previous: Edit | None, facts: Sequence[Fact]) -> ClosedFormEdit:
        """An earlier edit of this editor with further facts; the earlier edit itself stays as it is.

        Keys, targets and residuals are those of the model with the earlier edit. With history the earlier facts' keys
        count in H, but for those that a new fact supersedes.

        Returns:
            Of n facts without `previous` a `LowRankEdit` of rank n; above d_ffn / 2 a `ValueEdit`. Of layers that are
            mixtures an `ExpertsEdit` of the experts that answer the subjects' last tokens.

        Raises:
            EditRefusedError: a fact asks for an erasure; no fact is left; the update is out of all proportion; or
                `previous` is another editor's, model's or layers', has no state, or was made with other settings that
                are `lasting`.
            IndexError: the model has no such layer.
            ValueError: as in `prepare`; or C is singular, and there is no ridge.
        """
        require_targets(self.name, facts)
        lm.architecture.require_decoder(self.name)
        layers = self.resolved_layers(lm)
        require_one_kind(lm, layers)
        require_writable(lm, layers)
        own = check_previous(self.name, lm, layers, previous, WeightEdit, self.name)  # type: ignore[type-abstract]
        if own is not None:
            require_shared(self.name, self, own, self.lasting)
        state = KeyHistory() if own is None else state_of(self.name, own, KeyHistory)
        moments = self.moments(lm)
        n_written, width = state.n_written + len(facts), lm.memory(layers[0]).width
        warn_of_load(self.name, n_written, width, self.most_per_coefficient, self.when_crowded)
        batches, writing = self._batches(lm, facts), self._writing(lm, layers, moments)
        reads_more = any(isinstance(edit, TextEdit) for edit in lm.edits)
        reported = [] if own is None else list(own.origin.report)
        found: list[Round] = []
        with present(lm, own), ExitStack() as written:
            for number in range(1, self.rounds + 1):
                told = "" if number == 1 else f"round {number} of {self.rounds}"
                with lm.edits.suspended() if number == 1 and self.solve_on == "unedited" else nullcontext():
                    # `batches` have what edits put before prompts, which the unedited model does not read.
                    asked = self._batches(lm, facts) if reads_more and not lm.edits else batches
                    targets, report = self._targets(lm, asked, layers, told)
                    if self.after.norm_anchor:
                        rows, (_, weights) = SubjectRows(lm, [batch.prompts for batch in asked]), self._contexts(lm)
                        anchor_targets(lm, reported, rows, self.resolved_site(lm), weights, targets, report)
                        reported += report
                task = task_of(self.name, lm, batches, targets, report)
                past = state.before(task.facts)
                if found:  # of the round before its weights count, and not its keys: these facts are written anew
                    past = replace(past, weights=found[-1].state.weights)
                found.append(Round(*writing.written(lm, task, past), report))
                if number < self.rounds:
                    written.enter_context(edit_of(lm, Origin.of(lm, self, ()), found[-1].factors).applied(lm))
        whole = in_one(found)
        return finish(
            lm, self, own, whole.factors, facts, whole.report, whole.state, whole.state.n_written, self.refuse_norm
        )

    def resolved_layers(self, lm: LanguageModel) -> tuple[int, ...]:
        """The layers that are written in a model, ascending, counted from the bottom.

        Raises:
            IndexError: the model has no such layer.
            UnsupportedModelError: one is a mixture of experts, and the editor has a reason not to write it.
            ValueError: one is named twice; or a block's output is solved for, and one is the last.
        """
        top = lm.n_layers - (2 if self.site == "block" else 1)
        if self.layers:
            found = ascending(self.name, lm, self.layers)
        else:
            last = max(min(round(self.depth * lm.n_layers), top), 0)
            found = list(range(max(last - self.number + 1, 0), last + 1))
        if found[-1] > top:
            raise ValueError(
                f"{self.name}: layer {found[-1]} is the last of {lm.name}, and nothing later reads its block's output "
                "at the subject; name layers below it, or take site=ffn"
            )
        written = tuple(dict.fromkeys((found[0], found[-1]))) if self.ends_only else tuple(found)
        for layer in written if self.no_mixture else ():
            if lm.architecture.experts(layer) is not None:
                raise UnsupportedModelError(
                    f"{self.name}: layer {layer} of {lm.name} is a mixture of experts, {self.no_mixture}; take "
                    "editor=memit"
                )
        return written

    def resolved_site(self, lm: LanguageModel) -> Site:
        """Whose output is solved for in a model: the FFN's in place of the block's where the FFN joins it changed.

        What a layer lacks of a block's output is what its FFN has to add only where that joins the residual stream as
        it is. Behind a norm (Gemma 2, OLMo 2, GLM 4) or a factor (Granite) a part of it would be lost.
        """
        return "ffn" if self.site == "block" and not lm.architecture.adds_plainly else self.site

    def keys_and_residuals(self, lm: LanguageModel, facts: Sequence[Fact]) -> dict[int, tuple[Tensor, Tensor]]:
        """Keys and residuals of the facts in each layer, where no layer sees what another writes.

        For a knowledge base, which keeps what was solved for each fact on the unedited model: of several layers each
        has an equal share (`merged` writes what is left when those below are written), and there are no further
        `rounds`. It is silent: the base says how far it is.

        Args:
            lm: the model, as it is.
            facts: each with a new object.

        Returns:
            by layer the keys, (fact, d_ffn), and by how much what they answer is to change, (fact, d_model).

        Raises:
            EditRefusedError: a fact asks for an erasure, or is too long.
        """
        require_targets(self.name, facts)
        lm.architecture.require_decoder(self.name)
        layers = self.resolved_layers(lm)
        for layer in layers:
            _ = lm.memory(layer).d_ffn  # an entry is a key and a value of one memory, which a mixture has not
        batches = self._batches(lm, facts)
        targets, _ = self._targets(lm, batches, layers, None)
        rows = SubjectRows(lm, [batch.prompts for batch in batches])
        _, weights = self._contexts(lm)
        found = {}
        for layer in layers:
            aim = layer if self.ends_only else layers[-1]
            keys, outputs = rows.measured(lm, layer, aim, self.resolved_site(lm), weights)
            found[layer] = (self.written_keys(lm, layer, keys), (targets[aim] - outputs) / len(layers))
        return found

    def merged(self, lm: LanguageModel, facts: Sequence[Fact], residuals: Callable[[int], Tensor]) -> ClosedFormEdit:
        """The edit of facts that a knowledge base keeps, in several layers: as `edit` makes it of their targets.

        Keys and residuals are measured anew before each layer, with all lower ones written.

        Args:
            lm: the unedited model.
            facts: the facts.
            residuals: what `keys_and_residuals` gave for a layer, (fact, d_model): with what comes out of the unedited
                model they say its targets.

        Raises:
            EditRefusedError: the update of a layer is out of all proportion.
            ValueError: C is singular, and there is no ridge.
        """
        layers, moments = self.resolved_layers(lm), self.moments(lm)
        warn_of_load(self.name, len(facts), lm.memory(layers[0]).width, self.most_per_coefficient, self.when_crowded)
        batches, site, (_, weights) = self._batches(lm, facts), self.resolved_site(lm), self._contexts(lm)
        rows = SubjectRows(lm, [batch.prompts for batch in batches])
        targets = {
            aim: rows.measured(lm, aim, aim, site, weights)[1] + len(layers) * residuals(aim).float()
            for aim in self._aims(layers)
        }
        task = task_of(self.name, lm, batches, targets, [{"alike": []} for _ in facts])
        factors, _ = self._writing(lm, layers, moments).written(lm, task, KeyHistory())
        return finish(lm, self, None, factors, facts, task.report, None, len(facts), self.refuse_norm)

    def moments(self, lm: LanguageModel) -> Mapping[int, Moment]:
        """C of the layers that are written, by layer; kept on disk."""
        return moments_of(self.name, lm, self.resolved_layers(lm), self.text, self.tokens_per_coefficient)

    def _batches(self, lm: LanguageModel, facts: Sequence[Fact]) -> list[Batch]:
        """The facts' prompts, in the batches in which they are solved for."""
        prefixes, _ = self._contexts(lm)
        aims = self._aims(self.resolved_layers(lm))
        return batches_of(self.name, lm, facts, self.batch_size, prefixes, self.value, aims, self.frames)

    def _aims(self, layers: Sequence[int]) -> Sequence[int]:
        """The layers whose output is solved for."""
        return layers if self.ends_only else layers[:1] if self.rule == "replay" else layers[-1:]

    def _targets(
        self, lm: LanguageModel, batches: Sequence[Batch], layers: Sequence[int], told: str | None
    ) -> tuple[dict[int, Tensor], list[dict[str, Any]]]:
        """By layer the targets; and for each fact what there is to report."""
        prefixes, _ = self._contexts(lm)
        site = self.resolved_site(lm)
        solving = Solving(prefixes, self.value, site, self.keep_targets, self.workers, self.frames, told)
        targets, report = solving.targets(lm, batches, self._aims(layers))
        if self.rule == "replay":
            targets = replayed(lm, [batch.prompts for batch in batches], layers, targets[layers[0]], site)
        contexts = [said for batch in batches for said in batch.prompts.report()]
        return targets, [one | said for one, said in zip(report, contexts, strict=True)]

    def _writing(self, lm: LanguageModel, layers: Sequence[int], moments: Mapping[int, Moment]) -> Writing:
        """How the layers are written."""
        if self.ends_only or self.rule == "replay":
            steps = [Step(layer, 1.0, layer) for layer in layers]
        else:
            steps = [Step(layer, share, layers[-1]) for layer, share in spread(layers, self.rule)]
        _, weights = self._contexts(lm)
        how = (self.after, self.ridge, self.alike, self.keeps_history, self.batch_size)
        site = self.resolved_site(lm)
        return Writing(self.name, self.solution, steps, moments, self.written_keys, site, weights, *how)

    def _contexts(self, lm: LanguageModel) -> tuple[list[str], Tensor]:
        """The contexts, and how much each counts in a key."""
        found = contexts(lm, self.prefix_lengths, self.text, self.seed, self.prefixes)
        others = [number for _, number in self.prefix_lengths] if self.prefixes is None else [len(found) - 1]
        return found, group_weights([1, *filter(None, (*others, self.frames.most))])
