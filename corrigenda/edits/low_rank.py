"""`LowRankEdit`: matrices of low rank added to the values of some layers, as ROME's and MEMIT's updates are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from corrigenda.data.requests import REPEATED_BY, SUPERSEDED_BY
from corrigenda.edits.edit import Edit, folder_for
from corrigenda.edits.origin import Origin, require_factors
from corrigenda.edits.ties import How, merged_factors
from corrigenda.edits.weights import WeightEdit, memories_of
from corrigenda.errors import WrongModelError
from corrigenda.models.bare import BareModel
from corrigenda.settings.checked import check_value
from corrigenda.system.files import write_tensors


@dataclass(frozen=True, eq=False)
class LowRankEdit(WeightEdit):
    """Adds a low-rank matrix to the values of some layers: V <- V + A B.

    Attributes:
        factors: for each layer A, (d_ffn, rank), and B, (rank, d_model), in float32 on the CPU.
        modules: for each layer the name of the module that holds the values.
        transposed: whether those modules store V itself (Conv1D) and not its transpose (Linear).
        seq2seq: whether the model is an encoder-decoder.
        masked: whether it is a masked model.
    """

    factors: Mapping[int, tuple[Tensor, Tensor]]
    modules: Mapping[int, str]
    transposed: bool
    seq2seq: bool = False
    masked: bool = False
    kind: ClassVar[str] = "low_rank"

    def __post_init__(self) -> None:
        factors = {int(n): require_factors(self.kind, f"layer {n}", *pair) for n, pair in self.factors.items()}
        object.__setattr__(self, "factors", factors)
        object.__setattr__(self, "modules", {int(layer): name for layer, name in self.modules.items()})

    @classmethod
    def of(cls, lm: BareModel, origin: Origin, factors: Mapping[int, tuple[Tensor, Tensor]]) -> LowRankEdit:
        """An edit of the values of some layers of a model; negative layers count from the end.

        Raises:
            EditRefusedError: the factors, or their product, are not finite.
            IndexError: the model has no such layer.
            ValueError: a layer is named twice.
        """
        memories = memories_of(lm, factors)
        return cls(
            origin,
            {memory.layer: factors[layer] for layer, memory in memories.items()},
            {memory.layer: memory.path for memory in memories.values()},
            any(memory.transposed for memory in memories.values()),
            lm.architecture.has_encoder,
            not lm.architecture.family.causal,
        )

    @property
    def changed(self) -> Mapping[int, tuple[int, int]]:
        """The layers that are changed, and the shape (d_ffn, d_model) of each one's change."""
        return {layer: (left.shape[0], right.shape[1]) for layer, (left, right) in self.factors.items()}

    def delta(self, layer: Any) -> Tensor:
        """A B, the change of the layer's values, (d_ffn, d_model)."""
        left, right = self.factors[layer]
        return left @ right

    @classmethod
    def merged(
        cls,
        edits: Sequence[Edit],
        density: float = 0.5,
        weights: Sequence[float] | None = None,
        how: How = "ties_svd",
        rank: int | None = None,
    ) -> LowRankEdit:
        """Several low-rank edits as one, by TIES, as PEFT's `add_weighted_adapter` merges their adapters.

        Of each change the entries of the largest magnitude are kept; at each entry the sign is elected that has the
        larger sum; and the mean is taken over the changes that have that sign (Yadav et al. 2023). So less is left of
        what only one edit changes than with edits that are stacked, whose sum is exact. Each layer is merged over the
        edits that change it.

        Args:
            edits: two or more, made on the same weights.
            density: the share of entries that is kept of each.
            weights: of the edits; None for 1 each.
            how: "ties_svd": of the changes A B, and what comes of it is cut to `rank`; "ties": of A and of B, each by
                itself, which is sensible where they began alike (editors of one `seed`).
            rank: of a layer, with "ties_svd"; None for the largest that some layer of some edit has.

        Returns:
            an edit by ``ties``, with all facts. Of the reports only stays which facts were not edited: figures are of
            each edit alone.

        Raises:
            TypeError: one is no low-rank edit.
            ValueError: there is nothing to merge; `density`, `weights` or `rank` do not fit; or, with "ties", the ranks
                differ.
            WrongModelError: one was made on other weights.
        """
        check_value("LowRankEdit.merged", "how", how, How)
        parts = _mergeable(edits)
        given = [1.0] * len(parts) if weights is None else [float(weight) for weight in weights]
        ranks = sorted({left.shape[1] for edit in parts for left, _ in edit.factors.values()})
        if len(parts) < 2 or not ranks:
            raise ValueError("there is nothing to merge: give two edits or more, one of which changes a layer")
        if len(given) != len(parts):
            raise ValueError(f"{len(given)} weights for {len(parts)} edits; give one for each")
        if not 0 < density <= 1 or (rank is not None and rank < 1):
            raise ValueError(f"density={density} must lie in (0, 1], and rank={rank} be at least 1")
        if how == "ties" and (len(ranks) > 1 or rank not in (None, *ranks)):
            raise ValueError(f"how=ties merges edits of one rank, which stays; these have {ranks}: take how=ties_svd")
        factors = {}
        for layer in sorted({layer for edit in parts for layer in edit.factors}):
            pairs, shares = zip(
                *((e.factors[layer], share) for e, share in zip(parts, given, strict=True) if layer in e.factors),
                strict=True,
            )
            factors[layer] = merged_factors(pairs, shares, density, how, rank or ranks[-1])
        settings = {"how": how, "density": density, "weights": given, "rank": rank or ranks[-1]}
        origin = replace(
            parts[0].origin,
            editor="ties",
            settings=settings | {"of": [edit.origin.editor for edit in parts]},
            facts=tuple(fact for edit in parts for fact in edit.origin.facts),
            report=tuple(report for edit in parts for report in _still_true(edit.origin)),
        )
        modules = {layer: name for edit in parts for layer, name in edit.modules.items()}
        return cls(origin, factors, modules, parts[0].transposed, parts[0].seq2seq, parts[0].masked)

    def to_peft(self, folder: str | Path) -> None:
        """Writes the edit as a LoRA adapter that `peft.PeftModel.from_pretrained(base, folder)` loads.

        It names its base as the model was named when the edit was made: a folder, or a hub id. An embedded model's name
        is one for `load` alone. Of which `revision` a hub's model was is not known here: where it was not the newest,
        write it into ``adapter_config.json``.

        Raises:
            FileExistsError: there is a file where the folder should be.
            ValueError: the edit changes no layer.
        """
        if not self.factors:
            raise ValueError("an edit that changes no layer cannot be written as a PEFT adapter")
        folder = folder_for(folder, "a PEFT adapter")
        from peft import LoraConfig  # takes a second or two

        ranks = {self.modules[layer]: left.shape[1] for layer, (left, _) in self.factors.items()}
        base = Path(self.origin.model).expanduser()
        task = "SEQ_2_SEQ_LM" if self.seq2seq else None if self.masked else "CAUSAL_LM"  # PEFT has none for masked ones
        config = LoraConfig(
            task_type=task,
            # What lies in a folder is found from anywhere.
            base_model_name_or_path=str(base.resolve()) if base.is_dir() else self.origin.model,
            target_modules=list(ranks),
            r=max(ranks.values()),
            lora_alpha=max(ranks.values()),  # alpha / r scales the update; it is written down whole
            rank_pattern=ranks,
            alpha_pattern=ranks,
            lora_dropout=0.0,
            fan_in_fan_out=self.transposed,
            inference_mode=True,
        )
        folder.mkdir(parents=True, exist_ok=True)
        weights = {}
        for layer, (left, right) in self.factors.items():
            prefix = f"base_model.model.{self.modules[layer]}"
            weights[f"{prefix}.lora_A.weight"] = left.T
            weights[f"{prefix}.lora_B.weight"] = right.T
        write_tensors(folder / "adapter_model.safetensors", weights, {"format": "pt"})
        config.save_pretrained(str(folder))

    def _summary(self) -> str:
        parts = [
            f"layer {n}, rank {left.shape[1]}, |delta V| {self.norm(n):.3f}" for n, (left, _) in self.factors.items()
        ]
        return "; ".join(parts)

    def _factors(self) -> Mapping[int, tuple[Tensor, Tensor]]:
        return self.factors

    def _tensors(self) -> dict[str, Tensor]:
        return {
            f"{layer}.{side}": part
            for layer, pair in self.factors.items()
            for side, part in zip("AB", pair, strict=True)
        }

    def _settings(self) -> dict[str, Any]:
        said = {"modules": {str(layer): name for layer, name in self.modules.items()}, "transposed": self.transposed}
        return said | {name: True for name in ("seq2seq", "masked") if getattr(self, name)}

    @classmethod
    def _restore(cls, origin: Origin, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> LowRankEdit:
        factors = {int(layer): (tensors[f"{layer}.A"], tensors[f"{layer}.B"]) for layer in settings["modules"]}
        of = (bool(settings.get(name)) for name in ("seq2seq", "masked"))
        return cls(origin, factors, settings["modules"], bool(settings["transposed"]), *of)


def _still_true(origin: Origin) -> list[dict[str, Any]]:
    """Of each fact what its report says of it in any edit that it becomes a part of."""
    kept = ("refused", SUPERSEDED_BY, REPEATED_BY)
    reports = [*origin.report, *({} for _ in origin.facts[len(origin.report) :])]
    return [{name: report[name] for name in kept if name in report} for report in reports]


def _mergeable(edits: Sequence[Edit]) -> list[LowRankEdit]:
    """The edits, all of a kind and of a model that can be merged."""
    found: list[LowRankEdit] = []
    for edit in edits:
        if not isinstance(edit, LowRankEdit):
            raise TypeError(f"a {edit.kind} edit cannot be merged by TIES; only low_rank edits can")
        found.append(edit)
        first, other = found[0].origin, edit.origin
        if other.fingerprint != first.fingerprint:
            raise WrongModelError(
                f"an edit of {other.model} (weights {other.fingerprint[:12]}) cannot be merged with one of "
                f"{first.model} (weights {first.fingerprint[:12]}): make both on the same weights"
            )
    return found
