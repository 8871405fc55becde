"""The noise that hides a subject, or a relation, from the model."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.data import read_facts
from corrigenda.forward.interventions import Apply, Reading, intervene
from corrigenda.models.alone import one_thread
from corrigenda.models.sites import Site
from corrigenda.prompts import encode_plain, specials
from corrigenda.settings.checked import AtLeastOne, NotNegative, Seed, checked
from locate.question import Part, Question, last_of_relation


@dataclass(frozen=True)
@checked
class Noise:
    """Gaussian noise on the embeddings of a subject's tokens (Meng et al. 2022, section 2.1).

    Attributes:
        samples: how many draws the probabilities are averaged over.
        factor: the noise's standard deviation in units of that of the embeddings of `subjects`.
        sigma: its standard deviation itself, instead of `factor`.
        subjects: whose embeddings are taken; by default those of the facts that ship with the project.
        seed: for the draws; every fact and every restored state sees draws from the same seed.
        recipe: how the draws are made: "torch", or "rome", as the authors' code makes them (numpy's legacy generator;
            their seed is 1).
    """

    samples: AtLeastOne = 10
    factor: NotNegative = 3.0
    sigma: NotNegative | None = None
    subjects: tuple[str, ...] | None = None
    seed: Seed = 0
    recipe: Literal["torch", "rome"] = "torch"

    @one_thread
    def level(self, lm: LanguageModel) -> float:
        """The standard deviation of the noise."""
        if self.sigma is not None:
            return self.sigma
        subjects = self.subjects
        if subjects is None:
            subjects = tuple(fact.subject for fact in read_facts("embedded"))
        return self.factor * embedding_spread(lm, subjects)

    def draw(self, sigma: float, n_tokens: int, d_model: int) -> Tensor:
        """The draws, (samples, n_tokens, d_model), in float32 on the CPU."""
        shape = (self.samples, n_tokens, d_model)
        if self.recipe == "rome":
            return torch.from_numpy(np.random.RandomState(self.seed).randn(*shape)).float() * sigma
        return torch.randn(shape, generator=torch.Generator().manual_seed(self.seed)) * sigma

    def hiding(self, lm: LanguageModel, question: Question, part: Part, sigma: float) -> tuple[int, Tensor]:
        """What hides the subject of a prompt, or its relation: all words but the subject's.

        Returns:
            the first token that is hidden; and the draws from there on, (samples, n_tokens, d_model), 0 at what is not.

        Raises:
            ValueError: the relation is to be hidden, and the prompt ends with its subject.
        """
        (begin, end), width = question.subject, int(lm.model.get_input_embeddings().embedding_dim)
        if part == "subject":
            return begin, self.draw(sigma, end - begin, width)
        last, opening = last_of_relation(lm, question), len(specials(lm.tokenizer))
        if opening == begin:
            return end, self.draw(sigma, last + 1 - end, width)
        draws = self.draw(sigma, last + 1 - opening, width)
        draws[:, begin - opening : end - opening] = 0
        return opening, draws


@torch.no_grad()
def embedding_spread(lm: LanguageModel, subjects: Sequence[str]) -> float:
    """The standard deviation of all the numbers in the embeddings of the subjects' tokens.

    Raises:
        ValueError: there is no subject.
    """
    if not subjects:
        raise ValueError("the noise's strength is measured on subjects, and there is none; give some or a sigma")
    ids = [token for subject in subjects for token in encode_plain(lm.tokenizer, subject)]
    embedding = lm.model.get_input_embeddings()
    return float(embedding(torch.tensor(ids, device=lm.device)).float().std())


def added_to_embeddings(lm: LanguageModel, noise: Tensor, begin: int) -> AbstractContextManager[Reading]:
    """Adds noise, (batch, n, d_model), to the embeddings of n tokens from `begin` on, in the block's forwards."""

    def noisy(embeddings: Tensor) -> Tensor:
        changed = embeddings.clone()
        changed[:, begin : begin + noise.shape[1]] += noise.to(embeddings)
        return changed

    return intervene(lm, Site("embeddings"), Apply(noisy))
