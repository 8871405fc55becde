"""`Edit`: a reversible, saveable change to a model, and the stack of those that are applied."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from safetensors.torch import load_file
from torch import Tensor

from corrigenda.facts import Fact
from corrigenda.files import write_json, write_tensors

if TYPE_CHECKING:
    from corrigenda.memory import FFNMemory
    from corrigenda.model import LanguageModel
    from corrigenda.routing import Routes

FORMAT = 1
"""The version of the files that `Edit.save` writes."""


class WrongModelError(ValueError):
    """An edit was made on other weights than those it is to be applied to."""


class EditRefusedError(ValueError):
    """An editor will not make an edit: what is asked for is beyond it, or what it computed would wreck the model."""


@dataclass(frozen=True)
class Origin:
    """Where an edit comes from.

    Attributes:
        model: the model's name.
        fingerprint: of the unedited model's weights (`LanguageModel.fingerprint`).
        editor: the editor's name.
        settings: its hyper-parameters.
        facts: the requested changes.
        report: for each fact, what the editor has to say about its edit (losses, norms, warnings).
    """

    model: str
    fingerprint: str
    editor: str
    settings: dict[str, Any] = field(default_factory=dict)
    facts: tuple[Fact, ...] = ()
    report: tuple[dict[str, Any], ...] = ()

    @classmethod
    def of(cls, lm: LanguageModel, editor: Any, facts: Sequence[Fact], report: Sequence[dict[str, Any]] = ()) -> Origin:
        """The origin of an edit that an editor (a dataclass with a `name`) makes on a model."""
        return cls(lm.name, lm.fingerprint, editor.name, dataclasses.asdict(editor), tuple(facts), tuple(report))


@dataclass(frozen=True, eq=False)
class Edit(ABC):
    """A change to a model that can be applied, taken back, saved and loaded.

    Edits compose: applying stacks, reverting takes any one of them out again, and when the last is gone the model is
    bit for bit what it was.

    Attributes:
        origin: the model, editor and facts it was made from.
        kind: the name of the kind in saved files.
        in_weights: whether the change lies in the model's weights (and so in what `save_pretrained` writes).
    """

    origin: Origin
    kind: ClassVar[str]
    in_weights: ClassVar[bool]
    kinds: ClassVar[dict[str, type[Edit]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "kind" in cls.__dict__:  # HookedEdit is no kind itself
            Edit.kinds[cls.kind] = cls

    def apply(self, lm: LanguageModel, strict: bool = True) -> None:
        """Applies the edit on top of those already applied.

        Args:
            lm: the model to change.
            strict: whether to refuse a model whose unedited weights are not those the edit was made on.

        Raises:
            WrongModelError: it is another model, and `strict`; or its shapes do not fit.
            ValueError: this very edit is applied already.
        """
        if strict and self.origin.fingerprint != lm.fingerprint:
            raise WrongModelError(
                f"this edit was made on {self.origin.model} (weights {self.origin.fingerprint[:12]}), not on {lm.name} "
                f"(weights {lm.fingerprint[:12]}); pass strict=False to apply it all the same"
            )
        self._check(lm)
        lm.edits.push(self)

    def revert(self, lm: LanguageModel) -> None:
        """Takes the edit out again; others that are applied stay.

        Raises:
            ValueError: it is not applied.
        """
        lm.edits.remove(self)

    @contextmanager
    def applied(self, lm: LanguageModel, strict: bool = True) -> Iterator[LanguageModel]:
        """The model with the edit applied, inside a ``with`` block."""
        self.apply(lm, strict)
        try:
            yield lm
        finally:
            self.revert(lm)

    def save(self, folder: str | Path) -> None:
        """Writes the edit as ``edit.json`` and ``edit.safetensors``; `Edit.load` reads them back."""
        folder = Path(folder)
        origin = {f.name: getattr(self.origin, f.name) for f in dataclasses.fields(Origin)}
        origin["facts"] = [fact.to_dict() for fact in self.origin.facts]
        json.dumps(origin, allow_nan=False)  # what JSON cannot hold is an error before anything is written
        path = folder / "edit.safetensors"
        write_tensors(path, self._tensors())
        # The description goes last: a folder with it is complete, and it knows the tensors' file by its hash.
        description = {
            "format": FORMAT,
            "kind": self.kind,
            "tensors_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "settings": self._settings(),
            "origin": origin,
        }
        write_json(folder / "edit.json", description)

    @staticmethod
    def load(folder: str | Path) -> Edit:
        """Reads an edit that `save` wrote.

        Raises:
            FileNotFoundError: the folder holds no edit.
            ValueError: it holds one of an unknown format or kind, or a damaged one.
        """
        folder = Path(folder)
        path = folder / "edit.json"
        if not path.is_file():
            raise FileNotFoundError(f"{folder} holds no edit: there is no {path.name} in it")
        try:
            description = json.loads(path.read_text(encoding="utf-8"))
            kind, version = str(description["kind"]), description["format"]
            raw = dict(description["origin"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged: {error!r}") from None
        if version != FORMAT or kind not in Edit.kinds:
            raise ValueError(
                f"{path}: format {version!r}, kind {kind!r}; this version reads format {FORMAT} "
                f"and the kinds {', '.join(sorted(Edit.kinds))}"
            )
        tensors_path = folder / "edit.safetensors"
        if not tensors_path.is_file():
            raise FileNotFoundError(f"{folder} holds half an edit: {tensors_path.name} is missing")
        if hashlib.sha256(tensors_path.read_bytes()).hexdigest() != description.get("tensors_sha256"):
            raise ValueError(f"{tensors_path} is damaged: its SHA-256 is not the one that {path.name} names")
        try:
            raw["facts"] = tuple(Fact.from_dict(record) for record in raw["facts"])
            raw["report"] = tuple(raw["report"])
            return Edit.kinds[kind]._restore(Origin(**raw), load_file(tensors_path), description["settings"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is damaged: {error!r}") from error

    def describe(self) -> str:
        """A few lines for a person: what was changed, by which editor, in which model."""
        origin = self.origin
        lines = [f"{self.kind} edit of {origin.model} by {origin.editor}: {self._summary()}"]
        for fact in origin.facts[:10]:
            old = fact.target_true if fact.target_true is not None else "(nothing)"
            lines.append(
                f"  {fact.statement}: {old} -> {fact.target_new if fact.target_new is not None else '(erased)'}"
            )
        if len(origin.facts) > 10:
            lines.append(f"  and {len(origin.facts) - 10} more")
        return "\n".join(lines)

    def to_peft(self, folder: str | Path) -> None:
        """Writes the edit as a PEFT adapter.

        Raises:
            TypeError: the kind of edit has no such form (only a low-rank one has).
        """
        raise TypeError(f"a {self.kind} edit cannot be written as a PEFT adapter; only low_rank edits can")

    # -- what a kind has to say

    def _check(self, lm: LanguageModel) -> None:  # noqa: B027 - most kinds fit every model
        """Raises WrongModelError where the edit cannot fit the model, whatever `strict` says."""

    @abstractmethod
    def _install(self, lm: LanguageModel) -> None:
        """Puts the change into the model; `lm.edits` holds it already."""

    @abstractmethod
    def _remove(self, lm: LanguageModel) -> None:
        """Takes it out; `lm.edits` does not hold it any more."""

    @abstractmethod
    def _summary(self) -> str: ...

    def _tensors(self) -> dict[str, Tensor]:
        return {}

    def _settings(self) -> dict[str, Any]:
        return {}

    @classmethod
    @abstractmethod
    def _restore(cls, origin: Origin, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Edit: ...


class AppliedEdits(Sequence[Edit]):
    """The edits that are applied to one model, in order, and the untouched weights under them."""

    def __init__(self, lm: LanguageModel) -> None:
        self._lm = lm
        self._edits: list[Edit] = []
        self.untouched: dict[int, Tensor] = {}
        """The value matrices, (d_ffn, d_model), of the layers that weight edits touch, as they were before any."""
        self.open: dict[Edit, AbstractContextManager[Any]] = {}
        """What the applied edits that act through hooks hold open."""
        self.routes: Routes | None = None
        """What who runs a forward says of its rows (`routed`); None where nobody says anything."""

    def __len__(self) -> int:
        return len(self._edits)

    def __getitem__(self, index: Any) -> Any:
        return self._edits[index]

    def __contains__(self, edit: object) -> bool:
        return any(applied is edit for applied in self._edits)

    @property
    def context(self) -> str:
        """The text that context edits put before every prompt."""
        return "".join(edit.text for edit in self._edits if isinstance(edit, ContextEdit))

    def push(self, edit: Edit) -> None:
        """Applies an edit; use `Edit.apply`, which checks the model first."""
        if edit in self:
            raise ValueError("this edit is applied already")
        self._edits.append(edit)
        try:
            edit._install(self._lm)
        except BaseException:
            self.remove(edit)
            raise

    def remove(self, edit: Edit) -> None:
        """Takes an edit out; use `Edit.revert`."""
        if edit not in self:
            raise ValueError("this edit is not applied to this model")
        self._edits = [applied for applied in self._edits if applied is not edit]
        edit._remove(self._lm)

    @contextmanager
    def routed(self, routes: Routes | None) -> Iterator[None]:
        """Tells the routed edits which rows the forward inside the ``with`` block runs."""
        before, self.routes = self.routes, routes
        try:
            yield
        finally:
            self.routes = before

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """The unedited model, inside a ``with`` block; the edits come back after it, in their order."""
        edits = list(self._edits)
        for edit in reversed(edits):
            self.remove(edit)
        try:
            yield
        finally:
            for edit in edits:
                self.push(edit)

    @torch.no_grad()
    def rebuild(self, layers: Sequence[int]) -> None:
        """Sets the value matrices of some layers to the untouched ones plus what the applied edits add.

        Always summed afresh, in the order of application and in float32: floating-point addition cannot be taken back
        by subtraction, and so the same edits give the same bits however they came and went.
        """
        for layer in layers:
            values = self._lm.memory(layer).values
            edits = [edit for edit in self._edits if isinstance(edit, WeightEdit) and layer in edit.changed]
            if not edits:
                if layer in self.untouched:
                    values.copy_(self.untouched.pop(layer))
                continue
            if layer not in self.untouched:
                if values.is_meta:
                    raise ValueError(f"layer {layer} is offloaded (device_map); an edited layer has to be on a device")
                self.untouched[layer] = values.clone()
            total = self.untouched[layer].float()
            factors = [edit.factors[layer] for edit in edits if isinstance(edit, LowRankEdit)]
            if factors:  # one product for all of them, however many facts were edited one after another
                left = torch.cat([a for a, _ in factors], dim=1).to(total)
                right = torch.cat([b for _, b in factors], dim=0).to(total)
                total = total + left @ right
            for edit in edits:
                if not isinstance(edit, LowRankEdit):
                    total = total + edit.delta(layer).to(total)
            values.copy_(total)


@dataclass(frozen=True, eq=False)
class HookedEdit(Edit):
    """An edit that acts on activations while the model runs and leaves the weights alone.

    A kind says what it does by `_hooks`; it acts as long as that is open.
    """

    in_weights: ClassVar[bool] = False

    @abstractmethod
    def _hooks(self, lm: LanguageModel) -> AbstractContextManager[Any]:
        """What changes the model's forwards while it is open."""

    def _install(self, lm: LanguageModel) -> None:
        hooks = self._hooks(lm)
        hooks.__enter__()
        lm.edits.open[self] = hooks

    def _remove(self, lm: LanguageModel) -> None:
        hooks = lm.edits.open.pop(self, None)
        if hooks is not None:
            hooks.__exit__(None, None, None)


@dataclass(frozen=True, eq=False)
class WeightEdit(Edit):
    """An edit that adds a matrix to the values of some layers."""

    in_weights: ClassVar[bool] = True

    @property
    @abstractmethod
    def changed(self) -> Mapping[int, tuple[int, int]]:
        """The layers that are changed, and the shape (d_ffn, d_model) of each one's change."""

    @abstractmethod
    def delta(self, layer: int) -> Tensor:
        """The change of the layer's values, (d_ffn, d_model)."""

    def norm(self, layer: int) -> float:
        """The Frobenius norm of the layer's change."""
        return float(self.delta(layer).norm())

    def _check(self, lm: LanguageModel) -> None:
        for layer, shape in self.changed.items():
            if not 0 <= layer < lm.n_layers:
                raise WrongModelError(f"the edit changes layer {layer}, {lm.name} has {lm.n_layers}")
            values = lm.memory(layer).values
            if values.shape != shape:
                raise WrongModelError(
                    f"layer {layer}: the edit changes values of shape {shape}, {lm.name} has {tuple(values.shape)}"
                )

    def _install(self, lm: LanguageModel) -> None:
        lm.edits.rebuild(list(self.changed))

    def _remove(self, lm: LanguageModel) -> None:
        lm.edits.rebuild(list(self.changed))


def memories_of(lm: LanguageModel, layers: Collection[int]) -> dict[int, FFNMemory]:
    """The memory of each layer, by the number it was named by; negative ones count from the end.

    Raises:
        IndexError: the model has no such layer.
        ValueError: a layer is named twice.
    """
    memories = {layer: lm.memory(layer) for layer in layers}
    if len({memory.layer for memory in memories.values()}) < len(memories):
        raise ValueError(f"a layer is named twice: {sorted(memories)}")
    return memories


@dataclass(frozen=True, eq=False)
class LowRankEdit(WeightEdit):
    """Adds a low-rank matrix to the values of some layers: V <- V + A B.

    Attributes:
        factors: for each layer A, (d_ffn, rank), and B, (rank, d_model), in float32 on the CPU.
        modules: for each layer the name of the module that holds the values.
        transposed: whether those modules store V itself (Conv1D) and not its transpose (Linear).
    """

    factors: Mapping[int, tuple[Tensor, Tensor]]
    modules: Mapping[int, str]
    transposed: bool
    kind: ClassVar[str] = "low_rank"

    def __post_init__(self) -> None:
        factors = {}
        for layer, (left, right) in self.factors.items():
            if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0]:
                raise ValueError(
                    f"layer {layer}: factors of shapes {tuple(left.shape)} and {tuple(right.shape)} do not multiply"
                )
            factors[int(layer)] = (left.detach().float().cpu(), right.detach().float().cpu())
        object.__setattr__(self, "factors", factors)
        object.__setattr__(self, "modules", {int(layer): name for layer, name in self.modules.items()})

    @classmethod
    def of(cls, lm: LanguageModel, origin: Origin, factors: Mapping[int, tuple[Tensor, Tensor]]) -> LowRankEdit:
        """An edit of the values of some layers of a model; negative layers count from the end.

        Raises:
            IndexError: the model has no such layer.
            ValueError: a layer is named twice.
        """
        memories = memories_of(lm, factors)
        return cls(
            origin,
            {memory.layer: factors[layer] for layer, memory in memories.items()},
            {memory.layer: memory.path for memory in memories.values()},
            any(memory.transposed for memory in memories.values()),
        )

    @property
    def changed(self) -> Mapping[int, tuple[int, int]]:
        """The layers that are changed, and the shape (d_ffn, d_model) of each one's change."""
        return {layer: (left.shape[0], right.shape[1]) for layer, (left, right) in self.factors.items()}

    def delta(self, layer: int) -> Tensor:
        """A B, the change of the layer's values, (d_ffn, d_model)."""
        left, right = self.factors[layer]
        return left @ right

    def to_peft(self, folder: str | Path) -> None:
        """Writes the edit as a LoRA adapter that `peft.PeftModel.from_pretrained(base, folder)` loads.

        Raises:
            ValueError: the edit changes no layer.
        """
        if not self.factors:
            raise ValueError("an edit that changes no layer cannot be written as a PEFT adapter")
        from peft import LoraConfig  # takes a second or two

        ranks = {self.modules[layer]: left.shape[1] for layer, (left, _) in self.factors.items()}
        config = LoraConfig(
            task_type="CAUSAL_LM",
            target_modules=list(ranks),
            r=max(ranks.values()),
            lora_alpha=max(ranks.values()),  # alpha / r scales the update; it is written down whole
            rank_pattern=ranks,
            alpha_pattern=ranks,
            lora_dropout=0.0,
            fan_in_fan_out=self.transposed,
            inference_mode=True,
        )
        folder = Path(folder)
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

    def _tensors(self) -> dict[str, Tensor]:
        return {
            f"{layer}.{side}": part
            for layer, pair in self.factors.items()
            for side, part in zip("AB", pair, strict=True)
        }

    def _settings(self) -> dict[str, Any]:
        return {"modules": {str(layer): name for layer, name in self.modules.items()}, "transposed": self.transposed}

    @classmethod
    def _restore(cls, origin: Origin, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> LowRankEdit:
        factors = {int(layer): (tensors[f"{layer}.A"], tensors[f"{layer}.B"]) for layer in settings["modules"]}
        return cls(origin, factors, settings["modules"], bool(settings["transposed"]))


@dataclass(frozen=True, eq=False)
class ContextEdit(Edit):
    """Puts a text before every prompt; no weight changes. The baseline that every weight edit has to beat.

    Attributes:
        text: what stands before the prompt, its last space included.
    """

    text: str
    kind: ClassVar[str] = "context"
    in_weights: ClassVar[bool] = False

    def _install(self, lm: LanguageModel) -> None:
        """Nothing to do: `LanguageModel.tokens` asks for the context."""

    def _remove(self, lm: LanguageModel) -> None:
        """Nothing to do."""

    def _summary(self) -> str:
        return f"the prompt is preceded by {self.text!r}"

    def _settings(self) -> dict[str, Any]:
        return {"text": self.text}

    @classmethod
    def _restore(cls, origin: Origin, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> ContextEdit:
        return cls(origin, str(settings["text"]))
