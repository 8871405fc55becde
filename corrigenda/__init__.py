"""The core of Corrigenda: models and their FFN memories, facts, edits, and what locators and editors share."""

from corrigenda.edits.codebook import CodebookEdit
from corrigenda.edits.coefficients import CoefficientEdit
from corrigenda.edits.context import ContextEdit
from corrigenda.edits.edit import Edit, EditRefusedError, Origin, WrongModelError
from corrigenda.edits.low_rank import LowRankEdit
from corrigenda.edits.side_memory import SideMemoryEdit
from corrigenda.edits.values import ValueEdit
from corrigenda.edits.weights import WeightEdit
from corrigenda.facts import Fact, FactError, Probe
from corrigenda.language_model import LanguageModel
from corrigenda.loading import ModelNotFoundError, load
from corrigenda.models.embedded import ChecksumError
from corrigenda.models.families import Family, UnsupportedModelError
from corrigenda.models.memory import FFNMemory

__all__ = [
    "ChecksumError",
    "CodebookEdit",
    "CoefficientEdit",
    "ContextEdit",
    "Edit",
    "EditRefusedError",
    "FFNMemory",
    "Fact",
    "FactError",
    "Family",
    "LanguageModel",
    "LowRankEdit",
    "ModelNotFoundError",
    "Origin",
    "Probe",
    "SideMemoryEdit",
    "UnsupportedModelError",
    "ValueEdit",
    "WeightEdit",
    "WrongModelError",
    "load",
]
