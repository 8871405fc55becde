"""`HypernetworkTraining`: trains the network of an editor that learns to edit, and goes on where it was cut short.

In each step some facts are drawn. Their edits are made by the network as it is, and judged (Mitchell et al. 2022a,
section 3.3):

    L_edit = mean of -log P(new object | a paraphrase, edited)
    L_loc  = mean of KL(model || edited model) at prompts that shall stay
    L      = edit_weight L_edit + L_loc

What an edit is, and so what P is, says the editor (`TrainingTask`). The model's own weights never change. The layers
below the lowest one that is written run once for each text.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Generic, Protocol

import torch
import xxhash
from torch import Tensor, nn

from corrigenda import Fact, LanguageModel
from corrigenda.data.requests import normalised
from corrigenda.forward.differentiable import differentiable
from corrigenda.models.alone import one_thread
from corrigenda.settings.checked import AtLeastOne, Count, NotNegative, Positive, Seed, ShareBelowOne, checked
from corrigenda.system.files import read_kept, write_checked
from corrigenda.system.progress import track
from editing.learned.hypernetwork import N, SeenFact, TrainedNetwork, kept_network


class TrainingTask(Protocol[N]):
    """What a network is trained to do with facts."""

    @property
    def key(self) -> Sequence[Any]:
        """What else than facts and settings tells one training from another, of plain JSON values."""
        ...

    @property
    def facts(self) -> Sequence[Fact]:
        """Those that can be trained on."""
        ...

    @property
    def asked(self) -> Sequence[Sequence[Any]]:
        """Of each fact the rows that shall have its new object."""
        ...

    @property
    def kept(self) -> Sequence[Sequence[Any]]:
        """Of each fact the rows that shall stay as they are."""
        ...

    @property
    def per_step(self) -> int:
        """So many facts are in a step."""
        ...

    def network(self, train: Sequence[int]) -> N:
        """The network with which the training begins, on some of the facts."""
        ...

    def judged(
        self, network: N, facts: Sequence[int], asked: Sequence[int], kept: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """L_edit and L_loc of facts, with the number of each one's row that is asked and of the one that shall stay."""
        ...


class TrainedEditor(Protocol):
    """An editor with a network to train (`editing.learned.trained.Trained`)."""

    name: ClassVar[str]

    @property
    def end_token(self) -> bool:
        """Whether the end token is a part of the target."""
        ...

    def check(self, lm: LanguageModel) -> None:
        """Checks that it can edit the model."""
        ...

    def task(self, lm: LanguageModel, facts: Sequence[Fact], asked: HypernetworkTraining) -> TrainingTask[Any]:
        """What the network is trained on."""
        ...


@dataclass(frozen=True)
@checked
class HypernetworkTraining:
    """How a network is trained.

    Attributes:
        steps: so many there are in all; of a training that is there those that are missing.
        every: after so many steps the held-out facts are measured, and the state is kept.
        rank: of a block's matrix (`mend`, `malmen`; of `serac` it is `editor.rank`).
        blocks: of the network (likewise).
        edits: in a step; None for the editor's: 8 for `mend` and `serac`, 1 for `malmen`.
        facts: of each edit; None for the editor's: 1 for `mend`, 32 for `malmen`. `serac` has one.
        edit_weight: of L_edit.
        lr: Adam's learning rate of the blocks; of `serac`'s classifier and LoRA.
        rate_lr: of the logarithms of the rates (and of lambda); of the scale of `serac`'s classifier.
        step: where the rates begin: the change of an FFN's output at the facts' own tokens, as a share of it; for
            editors that have them.
        ratio: where lambda begins, as a share of the mean of |u|^2; for editors that have it.
        clip: the largest norm of a step's gradient.
        held_out: the share of the subjects, one at least, whose facts are not trained on: the learning curve is theirs.
        most_kept: so many of a fact's prompts that shall stay are used.
        seed: of the network, and of what is drawn.
    """

    group: ClassVar[str] = "job"

    steps: Count = 20_000
    every: AtLeastOne = 200
    rank: AtLeastOne = 256
    blocks: AtLeastOne = 2
    edits: AtLeastOne | None = None
    facts: AtLeastOne | None = None
    edit_weight: NotNegative = 0.1
    lr: Positive = 1e-4
    rate_lr: Positive = 1e-2
    step: Positive = 0.03
    ratio: Positive = 0.1
    clip: Positive = 1.0
    held_out: ShareBelowOne = 0.1
    most_kept: AtLeastOne = 3
    seed: Seed = 0

    @one_thread
    def network(self, lm: LanguageModel, editor: TrainedEditor, facts: Sequence[Fact]) -> TrainedNetwork[Any]:
        """The network that did best on the held-out facts.

        Its state is kept on disk as it learns: the same call, on the same facts, goes on from there.

        Args:
            lm: the model, without an edit.
            editor: whose network it is.
            facts: other facts than those that will be scored.

        Raises:
            EditRefusedError: a fact asks for an erasure; or its gradient is not finite.
            IndexError: the model has no such layer.
            UnsupportedModelError: as the editor's `check` says.
            ValueError: there are too few facts, or an edit is applied.
        """
        if lm.edits:
            raise ValueError(f"{editor.name}: a network is trained on the unedited model: revert its edits first")
        editor.check(lm)
        task = editor.task(lm, facts, self)
        training = _Training(self, editor.name, task)
        key = self._key(task, facts)
        path = kept_network(lm, editor.name).with_name(f"{editor.name}-{key}.safetensors")
        kept = read_kept(path, "the training begins anew")
        if kept is not None:
            training.restore(*kept)
        for number in track(range(training.done, self.steps), f"Training {editor.name}"):
            if number % self.every == 0:
                training.look()
                write_checked(path, *training.state())
            training.learn()
        training.look()
        write_checked(path, *training.state())
        seen = tuple(SeenFact(fact.id, fact.subject) for fact in facts)
        own = {name: getattr(self, name) for name in sorted(_OWN)}
        made = {"settings": own, "steps": training.done, "curve": training.curve}
        return TrainedNetwork(lm.name, lm.fingerprint, editor.name, editor.end_token, training.best, seen, made)

    def _key(self, task: TrainingTask[Any], facts: Sequence[Fact]) -> str:
        """What tells one training from another; with more steps it is the same."""
        own = {name: value for name, value in dataclasses.asdict(self).items() if name in _OWN - {"steps"}}
        text = json.dumps([own, task.key, [fact.to_dict() for fact in facts]], sort_keys=True)
        return xxhash.xxh3_128(text.encode()).hexdigest()


_OWN = {field.name for field in dataclasses.fields(HypernetworkTraining)}
"""Its own settings, and not those of a class that derives from it."""


class _Training(Generic[N]):
    """A network as it learns: the steps behind it, the held-out facts' curve, and the best network there."""

    def __init__(self, asked: HypernetworkTraining, editor: str, task: TrainingTask[N]) -> None:
        self._asked, self._task = asked, task
        self._train, self._held = self._parts(editor)
        self._batch = min(task.per_step, len(self._train))
        self._network = task.network(self._train)
        self.best = deepcopy(self._network).cpu()
        names = dict(self._network.named_parameters())
        slow = [one for name, one in names.items() if not name.startswith("log_")]
        fast = [one for name, one in names.items() if name.startswith("log_")]
        self._optimiser = torch.optim.Adam([{"params": slow, "lr": asked.lr}, {"params": fast, "lr": asked.rate_lr}])
        self.done = 0
        self.curve: list[dict[str, float]] = []
        self._losses: list[float] = []
        self._order = lru_cache(maxsize=2)(self._shuffled)

    @differentiable()
    def learn(self) -> None:
        """One step."""
        first = self.done * self._batch
        n = len(self._train)
        facts = [self._train[self._order(place // n)[place % n]] for place in range(first, first + self._batch)]
        draw = random.Random(f"{self._asked.seed} {self.done}")
        sides = self._task.asked, self._task.kept
        asked, kept = ([draw.randrange(len(side[fact])) for fact in facts] for side in sides)
        edit, stay = self._task.judged(self._network, facts, asked, kept)
        loss = self._asked.edit_weight * edit + stay
        self._optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._network.parameters(), self._asked.clip)
        self._optimiser.step()
        self.done += 1
        self._losses.append(float(loss.detach()))

    @torch.no_grad()
    def look(self) -> None:
        """Measures the held-out facts, each with its first prompts; the best network is kept."""
        if self.curve and self.curve[-1]["step"] == self.done:
            return
        edits, stays = 0.0, 0.0
        for begin in range(0, len(self._held), self._batch):
            facts = self._held[begin : begin + self._batch]
            edit, stay = self._task.judged(self._network, facts, [0] * len(facts), [0] * len(facts))
            edits += float(edit) * len(facts) / len(self._held)
            stays += float(stay) * len(facts) / len(self._held)
        loss = self._asked.edit_weight * edits + stays
        point = {"step": self.done, "loss": loss, "edit": edits, "kl": stays}
        if self._losses:
            point["training_loss"] = sum(self._losses) / len(self._losses)
        if not self.curve or loss < min(one["loss"] for one in self.curve):
            self.best.load_state_dict(self._network.state_dict())
        self.curve.append(point)
        self._losses = []

    def state(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Everything that `restore` needs, for `write_checked`; after `look`."""
        tensors = {f"now.{name}": one for name, one in self._network.state_dict().items()}
        tensors |= {f"best.{name}": one for name, one in self.best.state_dict().items()}
        for number, moments in self._optimiser.state_dict()["state"].items():
            tensors |= {f"adam.{number}.{name}": one for name, one in moments.items()}
        return tensors, {"done": str(self.done), "curve": json.dumps(self.curve)}

    def restore(self, tensors: dict[str, Tensor], said: dict[str, str]) -> None:
        """Takes up a state."""
        parts: dict[str, dict[str, Tensor]] = {"now": {}, "best": {}, "adam": {}}
        for name, one in tensors.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = one
        self._network.load_state_dict(parts["now"])
        self.best.load_state_dict(parts["best"])
        adam: dict[int, dict[str, Tensor]] = {}
        for name, one in parts["adam"].items():
            number, _, moment = name.partition(".")
            adam.setdefault(int(number), {})[moment] = one
        self._optimiser.load_state_dict(self._optimiser.state_dict() | {"state": adam})
        self.done, self.curve = int(said["done"]), json.loads(said["curve"])

    def _parts(self, editor: str) -> tuple[list[int], list[int]]:
        """The numbers of the facts to train on, and of those that are held out, which share no subject."""
        facts = self._task.facts
        subjects = sorted({normalised(fact.subject) for fact in facts})
        random.Random(self._asked.seed).shuffle(subjects)
        aside = {*subjects[: max(1, round(self._asked.held_out * len(subjects)))]}
        held = [number for number, fact in enumerate(facts) if normalised(fact.subject) in aside]
        train = [number for number in range(len(facts)) if number not in {*held}]
        if not train:
            raise ValueError(f"{editor}: facts about two subjects at least are needed, one is held out")
        return train, held

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(range(len(self._train)))
        random.Random(f"{self._asked.seed} {epoch} order").shuffle(order)
        return order
