"""`CausalTraceResult`: what tracing one fact gave."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from corrigenda import Fact
from locate.saving import SavedResult

ROLES = (
    "first subject token",
    "middle subject tokens",
    "last subject token",
    "first token after",
    "further tokens",
    "last token",
)
"""The parts that tokens play in a prompt, as in Meng et al. 2022, figure 2."""


@dataclass(frozen=True, eq=False)
class CausalTraceResult(SavedResult, file="trace"):
    """The grid of one traced fact.

    Attributes:
        fact: the fact.
        prompt: its prompt, as the model read it.
        tokens: the prompt's tokens as texts.
        subject: the subject's tokens, [first, last + 1).
        answer: the answer whose probability is followed.
        answer_ids: its tokens; where there are several, their probabilities are multiplied.
        site: what was restored: "block", "ffn" or "attention".
        window: in how many layers at once.
        method: "exact" or "attribution" (then `scores` are estimates to first order).
        severed: what was frozen above the restored state, or None.
        sigma: the noise's standard deviation.
        samples: the number of noise draws.
        p_clean: P(answer) of the clean run.
        p_corrupted: of the corrupted runs, their mean.
        scores: P(answer) with the state restored, the mean over the noise, (layer, position).
        hidden: what the noise hid, "subject" or "relation".
    """

    fact: Fact
    prompt: str
    tokens: tuple[str, ...]
    subject: tuple[int, int]
    answer: str
    answer_ids: tuple[int, ...]
    site: str
    window: int
    method: str
    severed: str | None
    sigma: float
    samples: int
    p_clean: float
    p_corrupted: float
    scores: Tensor
    hidden: str = "subject"

    @property
    def total_effect(self) -> float:
        """P - P*: what the noise takes away."""
        return self.p_clean - self.p_corrupted

    @property
    def indirect_effects(self) -> Tensor:
        """P*restored - P*: what each state brings back, (layer, position)."""
        return self.scores - self.p_corrupted

    @property
    def roles(self) -> tuple[int | None, ...]:
        """For each token its part in the prompt, an index into `ROLES`; None for those before the subject.

        A subject of one token is its last token, and the prompt's last token is that whatever else it is.
        """
        begin, end = self.subject
        found: list[int | None] = []
        for position in range(len(self.tokens)):
            if position == len(self.tokens) - 1:
                found.append(5)
            elif position < begin:
                found.append(None)
            elif position < end:
                found.append(2 if position == end - 1 else 0 if position == begin else 1)
            else:
                found.append(3 if position == end else 4)
        return tuple(found)

    def by_role(self) -> Tensor:
        """The mean indirect effect over the tokens of each role, (role, layer); NaN for roles no token has."""
        roles = self.roles
        rows = []
        for role in range(len(ROLES)):
            columns = [position for position, has in enumerate(roles) if has == role]
            rows.append(self.indirect_effects[:, columns].mean(1))  # NaN, where there is none
        return torch.stack(rows)

    def summary(self) -> dict[str, Any]:
        """The figures in plain values: effects, and where the largest one lies."""
        effects = self.indirect_effects
        layer, position = divmod(int(effects.argmax()), effects.shape[1])
        return {
            "prompt": self.prompt,
            "answer": self.answer,
            "site": self.site,
            "p_clean": self.p_clean,
            "p_corrupted": self.p_corrupted,
            "total_effect": self.total_effect,
            "largest_effect": float(effects.max()),
            "largest_layer": layer,
            "largest_token": self.tokens[position],
        }

    def table(self) -> Table:
        """A table for a terminal: for each token the layer whose restored state brings back most."""
        effects = 100 * self.indirect_effects
        title = (
            f"restored {self.site}: P({escape(self.answer)}) {100 * self.p_clean:.1f} % clean, "
            f"{100 * self.p_corrupted:.1f} % corrupted"
        )
        table = Table("token", "part", "peak layer", "indirect effect there (%)", title=title)
        for position, (token, role) in enumerate(zip(self.tokens, self.roles, strict=True)):
            layer = int(effects[:, position].argmax())
            part = "" if role is None else ROLES[role]
            table.add_row(escape(token), part, str(layer), f"{float(effects[layer, position]):.1f}")
        return table

    def plot(self, path: str | Path) -> None:
        """Draws the heat map (tokens down, layers across) as PNG, PDF or SVG, by the path's suffix."""
        from locate.tracing.pictures import heat_map

        remarks = ""
        if self.severed:
            remarks += f", {'FFN' if self.severed == 'ffn' else 'attention'} severed"
        if self.method == "attribution":
            remarks += " (first-order estimate)"
        heat_map(
            path,
            self.scores,
            self.tokens,
            self.subject,
            site=self.site,
            window=self.window,
            answer=self.answer,
            p_clean=self.p_clean,
            p_corrupted=self.p_corrupted,
            hidden=self.hidden,
            remarks=remarks,
        )
