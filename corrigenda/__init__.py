"""The core of Corrigenda: models and their FFN memories, facts, edits, and what locators and editors share."""

from typing import TYPE_CHECKING

from corrigenda.system.lazy import lazily

if TYPE_CHECKING:
    from corrigenda.data.read import read_facts as read_facts
    from corrigenda.edits.added_neurons import AddedNeuronsEdit as AddedNeuronsEdit
    from corrigenda.edits.attached import AttachedEdit as AttachedEdit
    from corrigenda.edits.blocks import BlocksEdit as BlocksEdit
    from corrigenda.edits.codebook import CodebookEdit as CodebookEdit
    from corrigenda.edits.coefficients import CoefficientEdit as CoefficientEdit
    from corrigenda.edits.context import ContextEdit as ContextEdit
    from corrigenda.edits.counterfactual import CounterfactualEdit as CounterfactualEdit
    from corrigenda.edits.edit import Edit as Edit
    from corrigenda.edits.hopfield import HopfieldEdit as HopfieldEdit
    from corrigenda.edits.low_rank import LowRankEdit as LowRankEdit
    from corrigenda.edits.masked_memory import MaskedMemoryEdit as MaskedMemoryEdit
    from corrigenda.edits.origin import Origin as Origin
    from corrigenda.edits.retrieval import RetrievalEdit as RetrievalEdit
    from corrigenda.edits.scoped import ScopedEdit as ScopedEdit
    from corrigenda.edits.side_memory import SideMemoryEdit as SideMemoryEdit
    from corrigenda.edits.values import ValueEdit as ValueEdit
    from corrigenda.edits.weights import WeightEdit as WeightEdit
    from corrigenda.errors import ChecksumError as ChecksumError
    from corrigenda.errors import ContextLengthError as ContextLengthError
    from corrigenda.errors import CorrigendaError as CorrigendaError
    from corrigenda.errors import DamagedModelError as DamagedModelError
    from corrigenda.errors import EditRefusedError as EditRefusedError
    from corrigenda.errors import FactError as FactError
    from corrigenda.errors import KnowledgeBaseError as KnowledgeBaseError
    from corrigenda.errors import ModelNotFoundError as ModelNotFoundError
    from corrigenda.errors import UnsupportedModelError as UnsupportedModelError
    from corrigenda.errors import WrongModelError as WrongModelError
    from corrigenda.facts import Fact as Fact
    from corrigenda.facts import Probe as Probe
    from corrigenda.knowledge.base import KnowledgeBase as KnowledgeBase
    from corrigenda.language_model import LanguageModel as LanguageModel
    from corrigenda.loading import load as load
    from corrigenda.models.families import Family as Family
    from corrigenda.models.memory import FFNMemory as FFNMemory

__all__ = lazily(__name__)
