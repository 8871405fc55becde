"""Editors: one file each, a frozen dataclass of hyper-parameters with `edit(lm, facts) -> Edit`."""

from typing import TYPE_CHECKING

from corrigenda.system.lazy import lazily

if TYPE_CHECKING:
    from corrigenda.system.workers import Workers as Workers
    from editing.baselines.adalora import AdaLora as AdaLora
    from editing.baselines.controls import InContext as InContext
    from editing.baselines.controls import NoEdit as NoEdit
    from editing.baselines.crispedit import CrispEdit as CrispEdit
    from editing.baselines.finetune import FineTune as FineTune
    from editing.baselines.lora import Lora as Lora
    from editing.baselines.random_update import RandomUpdate as RandomUpdate
    from editing.baselines.saved import Saved as Saved
    from editing.editor import Editor as Editor
    from editing.editor import EditRefusedError as EditRefusedError
    from editing.editor import prepare as prepare
    from editing.learned.malmen import Malmen as Malmen
    from editing.learned.mend import Mend as Mend
    from editing.learned.training import HypernetworkTraining as HypernetworkTraining
    from editing.locate_then_edit.after_treatments import AfterTreatments as AfterTreatments
    from editing.locate_then_edit.alphaedit import AlphaEdit as AlphaEdit
    from editing.locate_then_edit.emmet import Emmet as Emmet
    from editing.locate_then_edit.memit import Memit as Memit
    from editing.locate_then_edit.rome import Rome as Rome
    from editing.locate_then_edit.shift import Shift as Shift
    from editing.locate_then_edit.suit import Suit as Suit
    from editing.locate_then_edit.suit import SwapSettings as SwapSettings
    from editing.locate_then_edit.targets import ValueSettings as ValueSettings
    from editing.locate_then_edit.ultraedit import UltraEdit as UltraEdit
    from editing.memory_based.grace import Grace as Grace
    from editing.memory_based.horen import Horen as Horen
    from editing.memory_based.ike import Ike as Ike
    from editing.memory_based.lre import Lre as Lre
    from editing.memory_based.melo import Melo as Melo
    from editing.memory_based.memoir import Memoir as Memoir
    from editing.memory_based.retrieval import Retrieve as Retrieve
    from editing.memory_based.scoped import Scoped as Scoped
    from editing.memory_based.serac import Serac as Serac
    from editing.memory_based.t_patcher import TPatcher as TPatcher
    from editing.memory_based.wise.unrelated import Unrelated as Unrelated
    from editing.memory_based.wise.wise import Wise as Wise
    from editing.neurons.erase import EraseNeurons as EraseNeurons
    from editing.neurons.erase import erase_relation as erase_relation
    from editing.neurons.feature import FeatureSteering as FeatureSteering
    from editing.neurons.scale import Enhance as Enhance
    from editing.neurons.scale import Suppress as Suppress
    from editing.neurons.steer import steer as steer
    from editing.neurons.update import UpdateNeurons as UpdateNeurons
    from editing.registry import EDITORS as EDITORS
    from editing.registry import editor_class as editor_class
    from editing.registry import register as register
    from editing.shared.training_facts import TrainingFacts as TrainingFacts

__all__ = lazily(__name__)
