"""Locators: which layers, positions and neurons hold a fact."""

from locate.neurons.counts import NeuronCounts
from locate.neurons.knowledge_neurons import KnowledgeNeurons, knowledge_neurons
from locate.neurons.locator import Neurons
from locate.neurons.refine import RefinedNeurons, refine
from locate.neurons.suppression import ScalingCheck, scaling_check
from locate.question import UnknownFactError, ask
from locate.suggest import suggest_layers
from locate.survey import Survey, survey
from locate.tracing.average import AverageTrace, average
from locate.tracing.causal_trace import CausalTrace, causal_trace
from locate.tracing.noise import Noise
from locate.tracing.trace import ROLES, Trace

__all__ = [
    "ROLES",
    "AverageTrace",
    "CausalTrace",
    "KnowledgeNeurons",
    "NeuronCounts",
    "Neurons",
    "Noise",
    "RefinedNeurons",
    "ScalingCheck",
    "Survey",
    "Trace",
    "UnknownFactError",
    "ask",
    "average",
    "causal_trace",
    "knowledge_neurons",
    "refine",
    "scaling_check",
    "suggest_layers",
    "survey",
]
