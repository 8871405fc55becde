"""Locators: which layers, positions and neurons hold a fact."""

from typing import TYPE_CHECKING

from corrigenda.lazy import lazily

if TYPE_CHECKING:
    from locate.lens.early_exit import EarlyExit as EarlyExit
    from locate.lens.early_exit import EarlyExitSettings as EarlyExitSettings
    from locate.lens.early_exit import early_exit as early_exit
    from locate.lens.jacobian import JacobianLens as JacobianLens
    from locate.lens.jacobian import JacobianSettings as JacobianSettings
    from locate.lens.jacobian import jacobian_lens as jacobian_lens
    from locate.lens.logit_attribution import LogitAttribution as LogitAttribution
    from locate.lens.logit_attribution import logit_attribution as logit_attribution
    from locate.lens.logit_lens import LensGrid as LensGrid
    from locate.lens.logit_lens import logit_lens as logit_lens
    from locate.lens.sub_updates import SubUpdates as SubUpdates
    from locate.lens.sub_updates import sub_updates as sub_updates
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
