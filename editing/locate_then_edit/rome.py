"""ROME: one fact, one rank-one update of one value matrix.

Meng, Bau, Andonian and Belinkov 2022, "Locating and Editing Factual Associations in GPT".
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from corrigenda import EditRefusedError, Fact, LanguageModel, LowRankEdit, Origin
from corrigenda.edits.experts import ExpertsEdit
from corrigenda.edits.weights import require_writable
from corrigenda.errors import SettingsError
from corrigenda.models.alone import one_thread
from corrigenda.moments.experts import Moment
from corrigenda.moments.text import Text
from corrigenda.settings.checked import AtLeastOne, Count, NotNegative, Positive, Seed, Share, checked
from corrigenda.system.progress import counted, track
from editing.editor import require_targets
from editing.locate_then_edit.guards import Guards, agreement
from editing.locate_then_edit.joined import edit_of
from editing.locate_then_edit.keys import bare_keys, mean_keys
from editing.locate_then_edit.least_squares import equality_update, norms_alone
from editing.locate_then_edit.moments import moments_of
from editing.locate_then_edit.prompt_run import run_prompts
from editing.locate_then_edit.prompts import Prompts
from editing.locate_then_edit.solved import batches_of
from editing.locate_then_edit.targets import ValueSettings, solve_target_values
from editing.registry import register
from editing.shared.contexts import contexts, require_prefixes
from editing.shared.frames import Frames
from editing.shared.layers import OneLayer
from editing.shared.together import together
from editing.spaces import CLAMP, Number, Space


@register(
    "rome",
    paper="Meng et al. 2022, Locating and Editing Factual Associations in GPT",
    aim="one fact or a few in one layer",
    space=Space("one", (CLAMP, Number("value.kl_factor", 0.01, 1.0, log=True))),
)
@dataclass(frozen=True)
@checked
class Rome(OneLayer):
    """Rank-One Model Editing.

    For each fact: the key k* is the mean coefficient vector at the subject's last token over the prompt in several
    contexts; the value v* is solved for by gradient (`editing.locate_then_edit.targets`); and V is changed by the
    smallest update, in the metric of the coefficients' second moment C, that makes k* answer v*:

        delta V = C^-1 K^T (K' C^-1 K^T)^-1 (V* - K' V)

    with one row in K and in V* for each fact. For one fact this is ROME's equation 2. For several it is the same
    least-squares problem with all the constraints at once (Gupta et al. 2024, EMMET), so that facts edited together do
    not disturb each other as separately computed updates would.

    K' is K with `homogeneous_keys` (Gupta et al. 2024, "Rebuilding ROME"), which avoids the edits that disable a model.
    Without it K' are the keys of the bare prompts, as in the authors' code.

    With homogeneous keys the bare prompt may be left behind: a subject at the beginning of a text has another key
    there than after other words, and k*, a mean over contexts, does not stand for it ("Toyota is ..." was not edited
    while "..., Toyota is ..." was). So where the bare prompt's key agrees with k* by less than `bare_agreement` (a
    cosine in the metric of C^-1) it gets a row of its own in the same problem, with the same v*; the update is then
    of rank two.

    A layer that is a mixture of experts is one memory to ROME: its answer is linear in the values of all experts, with
    the key w_e m_e of every expert side by side (`corrigenda.models.experts`). C is taken expert by expert, so only the
    experts that answer k* are changed, each along its own C_e^-1 w_e m_e.

    With `position="relation"` key and value are those of the relation's last token: the prompt's last, which has to
    stand after the subject. There Liu et al. 2024, "Relation Also Knows" (RETS), edit, in a layer at some 0.7 of the
    depth (35 of GPT-2 XL's 48, 22 of Llama 2's 32). They also add other prompts' keys to C, as constraints for other
    subjects; that is not done here.

    Guards (`editing.locate_then_edit.guards`): an update is flagged where |delta V| / |V| is above `flag_norm` or the
    agreement of keys is below 0.2; refused above `refuse_norm`, below 0.02, and where anything is not finite. Refused
    facts are left out of the edit; where none is left, `EditRefusedError` is raised.

    Attributes:
        layer: the layer to edit; None for a tenth of the depth, or for 0.7 of it at the relation's last token.
        position: at whose last token, "subject" or "relation".
        prefix_lengths: pairs (tokens, number) of the contexts (`editing.shared.contexts`). The authors have ((5, 10),
            (10, 10)); with five, 72 facts are not told apart from theirs (docs/contexts.md).
        prefixes: contexts to use instead; the first should be "" (the bare prompt).
        frames: other forms of the facts that are contexts, too.
        value: how v* is solved for.
        homogeneous_keys: whether the same k* is used throughout.
        bare_agreement: see above, with homogeneous keys; 0 for k* alone.
        text: over which text C is taken.
        tokens_per_coefficient: the text has at least so many tokens for each of the layer's coefficients; 0 for the
            text as it is; None for 24 of the text that ships, and 8 of any other.
        ridge: is added to C's diagonal.
        batch_size: facts whose v* are solved for side by side.
        flag_norm: see above.
        refuse_norm: see above.
        seed: for the contexts.
    """

    name: ClassVar[str] = "rome"

    layer: int | None = None
    position: Literal["subject", "relation"] = "subject"
    prefix_lengths: tuple[tuple[AtLeastOne, AtLeastOne], ...] = ((10, 5),)
    prefixes: tuple[str, ...] | None = None
    frames: Frames = field(default_factory=Frames)
    value: ValueSettings = field(default_factory=ValueSettings)
    homogeneous_keys: bool = True
    bare_agreement: Share = 0.9
    text: Text = field(default_factory=Text)
    tokens_per_coefficient: Count | None = None
    ridge: NotNegative = 1e-6
    batch_size: AtLeastOne = 8
    flag_norm: Positive = 0.5
    refuse_norm: Positive = 2.0
    seed: Seed = 0

    def __post_init__(self) -> None:
        require_prefixes(self, self.prefixes)
        if not self.homogeneous_keys and self.bare_agreement not in (0, Rome.bare_agreement):
            raise SettingsError(
                f"Rome: bare_agreement={self.bare_agreement} holds the bare prompt's key against k*, which is not used "
                "with homogeneous_keys=False; leave one of the two out"
            )

    @property
    def depth(self) -> float:
        """The default layer as a share of the model's depth."""
        # Measured on SmolLM2 (docs/layers.md); the papers' choices at the subject lie between 0.1 and 0.35.
        return 0.1 if self.position == "subject" else 0.7

    @one_thread
    def prepare(self, lm: LanguageModel) -> None:
        """Samples the contexts and takes the second moment, which are kept on disk.

        Raises:
            IndexError: the model has no such layer.
        """
        lm.architecture.require_decoder("ROME")
        layer = self.resolved_layer(lm)
        require_writable(lm, [layer])
        self._contexts(lm)
        self._moment(lm, layer)

    @together
    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> LowRankEdit | ExpertsEdit:
        """One update of one layer that makes all the facts hold, of rank one or two for each.

        Of a layer that is a mixture, the experts that answer the subjects' last tokens are changed.

        Raises:
            EditRefusedError: a fact asks for an erasure; or its prompt ends with its subject, where the relation's last
                token is edited; or goes on after it, where the subject's is in the last layer; or every update was
                refused by the guards.
            IndexError: the model has no such layer.
        """
        require_targets("ROME", facts)
        lm.architecture.require_decoder("ROME")
        layer = self.resolved_layer(lm)
        require_writable(lm, [layer])
        prefixes = self._contexts(lm)
        memory, moment = lm.memory(layer), self._moment(lm, layer)
        scale = memory.norm()
        guards = Guards("ROME", self.flag_norm, self.refuse_norm)

        keys, bare, wanted, report, bare_out = self._solved(lm, facts, layer, prefixes)
        directions, bare_directions = moment.solve(keys, self.ridge), moment.solve(bare, self.ridge)
        asked, asked_directions = (keys, directions) if self.homogeneous_keys else (bare, bare_directions)
        residuals = wanted - memory.read(asked).float()
        agreements = agreement(asked, asked_directions, keys, directions)
        alone = norms_alone(asked, directions, residuals)
        for number, (fact, figures) in enumerate(zip(facts, report, strict=True)):
            figures["agreement"] = float(agreements[number])
            figures["relative_norm"] = float(alone[number]) / scale
            guards.judge(fact.id, figures)
        kept = [number for number, figures in enumerate(report) if "refused" not in figures]
        if not kept:
            raise EditRefusedError(
                "; ".join(f"fact {fact.id!r}: {f['refused']}" for fact, f in zip(facts, report, strict=True))
            )

        own: list[int] = []  # the facts whose bare prompt gets a constraint of its own: k* does not stand for it
        if self.homogeneous_keys:
            likeness = agreement(bare, bare_directions, keys, directions).tolist()
            for number in kept:
                report[number]["bare_agreement"] = likeness[number]
            own = [
                n
                for n in kept
                if likeness[n] < self.bare_agreement and not (report[n]["subject_at_start"] or bare_out[n])
            ]
        factors = equality_update(
            torch.cat([asked[kept], bare[own]]),
            torch.cat([directions[kept], bare_directions[own]]),
            torch.cat([residuals[kept], wanted[own] - memory.read(bare[own]).float()]),
        )
        origin = Origin.of(lm, self, facts, report)
        edit = edit_of(lm, origin, {layer: factors})
        relative_norm = edit.norm(layer) / scale
        if len(kept) == 1:
            guards.judge_whole_of_one(facts[kept[0]].id, report[kept[0]], relative_norm)
        guards.refuse_whole(layer, relative_norm, len(kept))
        return edit

    def _solved(
        self, lm: LanguageModel, facts: Sequence[Fact], layer: int, prefixes: Sequence[str]
    ) -> tuple[Tensor, Tensor, Tensor, list[dict[str, Any]], list[bool]]:
        """Of each fact k*, the bare prompt's key, v*, what there is to report, and whether the bare prompt is left out.

        Keys are (fact, d_ffn), values (fact, d_model).
        """
        parts, report = [], []
        made = batches_of("ROME", lm, facts, self.batch_size, prefixes, self.value, [layer], self.frames, self.position)
        batches = [batch.prompts for batch in made]
        told: Iterable[Prompts] = batches
        if len(batches) > 1:  # one batch takes seconds, and who asked for it tells of it
            told = track(batches, f"Solving for the target values of {counted(len(facts), 'fact')}", bar=False)
        for prompts in told:
            run = run_prompts(lm, prompts, [layer])
            solved = solve_target_values(lm, run, layer, self.value)
            parts.append((mean_keys(run, layer), bare_keys(run, layer), solved.values))
            report += [one | said for one, said in zip(solved.report(), prompts.report(), strict=True)]
        keys, bare, wanted = (torch.cat(part) for part in zip(*parts, strict=True))
        return keys, bare, wanted, report, [out for prompts in batches for out in prompts.bare_out]

    def _moment(self, lm: LanguageModel, layer: int) -> Moment:
        return moments_of("ROME", lm, [layer], self.text, self.tokens_per_coefficient)[layer]

    def _contexts(self, lm: LanguageModel) -> list[str]:
        return contexts(lm, self.prefix_lengths, self.text, self.seed, self.prefixes)
