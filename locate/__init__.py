"""Locators: which layers, positions and neurons hold a fact."""

from typing import TYPE_CHECKING

from corrigenda.system.lazy import lazily

if TYPE_CHECKING:
    from locate.flow.attributes import AttributeFlow as AttributeFlow
    from locate.flow.attributes import attribute_flow as attribute_flow
    from locate.flow.function import EarlyDecoding as EarlyDecoding
    from locate.flow.function import Transplant as Transplant
    from locate.flow.function import decode_early as decode_early
    from locate.flow.function import transplant as transplant
    from locate.flow.knockout import AttentionKnockout as AttentionKnockout
    from locate.flow.knockout import attention_knockout as attention_knockout
    from locate.flow.results import AverageKnockout as AverageKnockout
    from locate.flow.results import Knockout as Knockout
    from locate.flow.results import average_knockouts as average_knockouts
    from locate.lens.aggregation import Aggregation as Aggregation
    from locate.lens.aggregation import aggregation as aggregation
    from locate.lens.agreement import Agreement as Agreement
    from locate.lens.agreement import agreement as agreement
    from locate.lens.backward import BackwardLens as BackwardLens
    from locate.lens.backward import GradientLens as GradientLens
    from locate.lens.backward import backward_lens as backward_lens
    from locate.lens.early_exit import EarlyExit as EarlyExit
    from locate.lens.early_exit import EarlyExitSettings as EarlyExitSettings
    from locate.lens.early_exit import early_exit as early_exit
    from locate.lens.edit_lens import EditLens as EditLens
    from locate.lens.edit_lens import edit_lens as edit_lens
    from locate.lens.edit_results import EditReading as EditReading
    from locate.lens.jacobian import JacobianLens as JacobianLens
    from locate.lens.jacobian import JacobianSettings as JacobianSettings
    from locate.lens.jacobian import jacobian_lens as jacobian_lens
    from locate.lens.logit_attribution import LogitAttribution as LogitAttribution
    from locate.lens.logit_attribution import logit_attribution as logit_attribution
    from locate.lens.logit_lens import LensGrid as LensGrid
    from locate.lens.logit_lens import logit_lens as logit_lens
    from locate.lens.promoting import promoting as promoting
    from locate.lens.saturation import SaturationEvents as SaturationEvents
    from locate.lens.saturation import saturation_events as saturation_events
    from locate.lens.sensitivity import Sensitivity as Sensitivity
    from locate.lens.sensitivity import sensitivity as sensitivity
    from locate.lens.sub_updates import SubUpdates as SubUpdates
    from locate.lens.sub_updates import sub_updates as sub_updates
    from locate.lens.triggers import Triggers as Triggers
    from locate.lens.triggers import trigger_examples as trigger_examples
    from locate.lens.values import ValueWords as ValueWords
    from locate.lens.values import read_values as read_values
    from locate.neurons.counts import NeuronCounts as NeuronCounts
    from locate.neurons.knowledge_neurons import KnowledgeNeurons as KnowledgeNeurons
    from locate.neurons.knowledge_neurons import knowledge_neurons as knowledge_neurons
    from locate.neurons.locator import Neurons as Neurons
    from locate.neurons.refine import RefinedNeurons as RefinedNeurons
    from locate.neurons.refine import refine as refine
    from locate.neurons.suppression import ScalingCheck as ScalingCheck
    from locate.neurons.suppression import scaling_check as scaling_check
    from locate.question import UnknownFactError as UnknownFactError
    from locate.question import ask as ask
    from locate.suggest import suggest_layers as suggest_layers
    from locate.survey import Survey as Survey
    from locate.survey import survey as survey
    from locate.tracing.average import AverageTrace as AverageTrace
    from locate.tracing.average import average as average
    from locate.tracing.causal_trace import CausalTrace as CausalTrace
    from locate.tracing.causal_trace import causal_trace as causal_trace
    from locate.tracing.noise import Noise as Noise
    from locate.tracing.trace import ROLES as ROLES
    from locate.tracing.trace import Trace as Trace

__all__ = lazily(__name__)
