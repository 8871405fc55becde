"""The core of Corrigenda: models and their FFN memories, facts, edits, and what locators and editors share."""

from typing import TYPE_CHECKING

from corrigenda.lazy import lazily

if TYPE_CHECKING:
    from corrigenda.edits.attached import AttachedEdit as AttachedEdit
    from corrigenda.edits.codebook import CodebookEdit as CodebookEdit
    from corrigenda.edits.coefficients import CoefficientEdit as CoefficientEdit
    from corrigenda.edits.context import ContextEdit as ContextEdit
    from corrigenda.edits.edit import Edit as Edit
    from corrigenda.edits.edit import EditRefusedError as EditRefusedError
    from corrigenda.edits.edit import Origin as Origin
    from corrigenda.edits.edit import WrongModelError as WrongModelError
    from corrigenda.edits.low_rank import LowRankEdit as LowRankEdit
    from corrigenda.edits.side_memory import SideMemoryEdit as SideMemoryEdit
    from corrigenda.edits.values import ValueEdit as ValueEdit
    from corrigenda.edits.weights import WeightEdit as WeightEdit
    from corrigenda.facts import Fact as Fact
    from corrigenda.facts import FactError as FactError
    from corrigenda.facts import Probe as Probe
    from corrigenda.knowledge.base import KnowledgeBase as KnowledgeBase
    from corrigenda.knowledge.database import KnowledgeBaseError as KnowledgeBaseError
    from corrigenda.language_model import LanguageModel as LanguageModel
    from corrigenda.loading import DamagedModelError as DamagedModelError
    from corrigenda.loading import ModelNotFoundError as ModelNotFoundError
    from corrigenda.loading import load as load
    from corrigenda.models.embedded import ChecksumError as ChecksumError
    from corrigenda.models.families import Family as Family
    from corrigenda.models.families import UnsupportedModelError as UnsupportedModelError
    from corrigenda.models.memory import FFNMemory as FFNMemory
    from corrigenda.prompts import ContextLengthError as ContextLengthError

__all__ = lazily(__name__)
