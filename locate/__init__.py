"""Locators: which layers, positions and neurons hold a fact."""

from typing import TYPE_CHECKING

from corrigenda.lazy import lazily

if TYPE_CHECKING:
    from locate.lens.aggregation import Aggregation as Aggregation
    from locate.lens.aggregation import aggregation as aggregation
    from locate.lens.agreement import Agreement as Agreement
    from locate.lens.agreement import agreement as agreement
    from locate.lens.sensitivity import Sensitivity as Sensitivity
    from locate.lens.sensitivity import sensitivity as sensitivity
    from locate.lens.triggers import Triggers as Triggers
    from locate.lens.triggers import trigger_examples as trigger_examples
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
