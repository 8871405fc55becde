"""`EntrySolver`: an editor's keys and targets as entries of a knowledge base, each fact solved for by itself."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from corrigenda import EditRefusedError, Fact, LanguageModel
from corrigenda.knowledge.entries import Entry, canonical
from corrigenda.system.workers import Workers
from editing.editor import require_targets
from editing.locate_then_edit.closed_form import ClosedForm
from editing.locate_then_edit.suit import Suit
from editing.memory_based.scoped import Scoped
from editing.shared.contexts import contexts


@dataclass(frozen=True)
class EntrySolver:
    """Solves facts by the code of an editor; a `corrigenda.knowledge.entries.Solver`.

    Each fact is solved for alone, and no target is taken from the disk: the same fact has the same bits whatever stands
    beside it and whatever was solved before, which a batch gives to rounding only.
    """

    editor: ClosedForm | Scoped

    def __call__(self, lm: LanguageModel, facts: Sequence[Fact]) -> list[Entry]:
        """An entry for each fact and each layer that the editor writes; see `corrigenda.knowledge.entries.Solver`.

        Raises:
            EditRefusedError: a fact asks for an erasure, is too long, or has a target that is not finite.
        """
        require_targets(self.editor.name, facts)
        alone = dataclasses.replace(self.editor, keep_targets=False, workers=Workers())
        settings = self.settings(lm)
        entries = []
        for fact in facts:
            for layer, (keys, residuals) in alone.keys_and_residuals(lm, [fact]).items():
                if not bool(residuals.isfinite().all() and keys.isfinite().all()):
                    raise EditRefusedError(
                        f"{self.editor.name}: fact {fact.id!r} cannot be solved for: its target is not finite; leave "
                        "it out, or say it otherwise"
                    )
                untouched = lm.memory(layer).values.double().cpu()
                value = keys[0].double() @ untouched + residuals[0].double()
                entries.append(Entry(fact.id, layer, keys[0], value, lm.fingerprint, settings))
        return entries

    def settings(self, lm: LanguageModel) -> dict[str, Any]:
        """What an entry depends on besides the fact: with the same, editors share entries."""
        editor, said = self.editor, dataclasses.asdict(self.editor)
        names = ("site", "ends_only", "prefix_lengths", "prefixes", "value", "seed")
        found: dict[str, Any] = {name: said[name] for name in names if name in said}
        found |= {"model": lm.cache_key, "layers": list(editor.resolved_layers(lm))}  # how it reads and computes, too
        if isinstance(editor, Scoped):
            found["position"] = "last"
        if isinstance(editor, Suit):  # an entry has its `written_keys`
            found["energy"] = editor.energy
        if editor.prefixes is None:
            found["contexts"] = contexts(lm, editor.prefix_lengths, editor.text, editor.seed)
        if editor.frames.most:
            found["frames"] = editor.frames.key
        if editor.frames.chat:
            found["chat_template"] = str(lm.tokenizer.chat_template)
        return found

    def require_own(self, lm: LanguageModel, entries: Sequence[Entry]) -> None:
        """Refuses entries that were solved by other settings (ValueError), which name other layers and targets."""
        wanted = canonical(self.settings(lm))
        for entry in entries:
            if entry.settings_json != wanted:
                raise ValueError(
                    f"fact {entry.fact!r} was solved with other settings ({entry.settings_json:.200}) than those of "
                    f"{self.editor.name} ({wanted:.200}): solve(lm, solver) with its own solver solves it anew"
                )
