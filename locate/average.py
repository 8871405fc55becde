"""What a locator found of many facts, together."""

from collections.abc import Sequence
from typing import Any, overload

from locate.flow.results import AttentionKnockoutResult, AverageKnockout, average_knockouts
from locate.neurons.counts import NeuronCounts
from locate.neurons.refine import NeuronsResult
from locate.tracing.average import AverageTrace, average_traces
from locate.tracing.trace import CausalTraceResult


@overload
def average(results: Sequence[CausalTraceResult]) -> AverageTrace: ...
@overload
def average(results: Sequence[AttentionKnockoutResult]) -> AverageKnockout: ...
@overload
def average(results: Sequence[NeuronsResult]) -> NeuronCounts: ...
def average(results: Sequence[Any]) -> AverageTrace | AverageKnockout | NeuronCounts:
    """Averages results of one locator over facts, with intervals over subjects.

    Args:
        results: of `causal_trace`, `attention_knockout` or `Neurons`.

    Raises:
        ValueError: there is none, or they differ in their settings, in the model (neurons) or in its depth.
    """
    if results and isinstance(results[0], NeuronsResult):
        return NeuronCounts.of(results)
    if results and isinstance(results[0], AttentionKnockoutResult):
        return average_knockouts(results)
    return average_traces(results)
