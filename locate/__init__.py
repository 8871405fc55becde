"""Locators: which layers, positions and neurons hold a fact; and what vectors, edits and answers say in words."""

from typing import TYPE_CHECKING

from corrigenda.system.lazy import lazily

if TYPE_CHECKING:
    from locate.average import average as average
    from locate.circuits.circuit import Circuits as Circuits
    from locate.circuits.circuit import circuit_change as circuit_change
    from locate.circuits.circuit import knowledge_circuit as knowledge_circuit
    from locate.circuits.results import Circuit as Circuit
    from locate.circuits.results import CircuitChange as CircuitChange
    from locate.flow.knockout import AttentionKnockout as AttentionKnockout
    from locate.flow.knockout import attention_knockout as attention_knockout
    from locate.flow.relation import RelationDecoding as RelationDecoding
    from locate.flow.relation import linear_relation as linear_relation
    from locate.flow.relation_results import LinearRelation as LinearRelation
    from locate.flow.results import AttentionKnockoutResult as AttentionKnockoutResult
    from locate.lens.backward import BackwardLens as BackwardLens
    from locate.lens.backward import BackwardLensResult as BackwardLensResult
    from locate.lens.backward import backward_lens as backward_lens
    from locate.lens.edit_lens import edit_lens as edit_lens
    from locate.lens.edit_results import EditLensResult as EditLensResult
    from locate.lens.jacobian import jacobian_lens as jacobian_lens
    from locate.lens.logit_attribution import LogitAttributionResult as LogitAttributionResult
    from locate.lens.logit_attribution import logit_attribution as logit_attribution
    from locate.lens.logit_lens import LogitLensResult as LogitLensResult
    from locate.lens.logit_lens import logit_lens as logit_lens
    from locate.lens.promoters import promoters as promoters
    from locate.lens.sub_updates import SubUpdatesResult as SubUpdatesResult
    from locate.lens.sub_updates import sub_updates as sub_updates
    from locate.lens.values import read_values as read_values
    from locate.neurons.knowledge_neurons import KnowledgeNeuronsResult as KnowledgeNeuronsResult
    from locate.neurons.knowledge_neurons import knowledge_neurons as knowledge_neurons
    from locate.neurons.locator import Neurons as Neurons
    from locate.question import UnknownFactError as UnknownFactError
    from locate.suggest import suggest_layers as suggest_layers
    from locate.tracing.causal_trace import CausalTrace as CausalTrace
    from locate.tracing.causal_trace import causal_trace as causal_trace
    from locate.tracing.noise import Noise as Noise
    from locate.tracing.trace import CausalTraceResult as CausalTraceResult

__all__ = lazily(__name__)
