"""What the edit wrote, as a grid: each layer's components, and what they say at the fact's prompt."""

from typing import Any

from jobs.explain.grids import Field, Grid, with_scores
from locate import EditLensResult
from locate.lens.edit_results import Component, LayerReading

TITLE = "What the edit wrote"
ABOUT = (
    "The update of each layer taken apart: what a component answers to (the nearest neurons), and which tokens it "
    "promotes. The signs of both sides together are arbitrary. The last column is what is written at the fact's prompt."
)


def edit_grids(reading: EditLensResult) -> list[Grid]:
    """The grid of an edit's reading, with the first fact that it was read at; none, where it changed no layer."""
    if not reading.layers:
        return []
    n_components = max(len(layer.components) for layer in reading.layers)
    fact = reading.facts[0] if reading.facts else None
    columns = (*(f"component {number + 1}" for number in range(n_components)), *(("at the prompt",) if fact else ()))

    def of_components(value: Any, at_prompt: Any = lambda number: None) -> list[list[Any]]:
        rows = []
        for number, layer in enumerate(reading.layers):
            found = [value(each) for each in layer.components]
            found += [None] * (n_components - len(found))
            rows.append([*found, *([at_prompt(number)] if fact else [])])
        return rows

    fields = [
        Field("share of the update", "share", of_components(lambda one: one.share), colours=True),
        Field(
            "says first",
            "text",
            of_components(lambda one: one.promoted.texts[0], lambda number: fact.written[number][0] if fact else None),
        ),
        Field("strength", "number", of_components(lambda one: one.strength)),
        Field("says", "words", of_components(lambda one: with_scores(one.promoted))),
        Field("or, of the other sign", "words", of_components(lambda one: with_scores(one.eliminated))),
        Field("answers to", "lines", of_components(_answers_to)),
    ]
    if fact is not None:

        def only_there(values: Any) -> list[list[Any]]:
            return of_components(lambda one: None, lambda number: values[number])

        fields += [
            Field(f"rank of {fact.token!r} there", "whole", only_there(fact.written_ranks)),
            Field(f"best rank of {fact.token!r} in the weights alone", "whole", only_there(fact.weights_ranks)),
            Field("writes", "lines", only_there([[repr(text) for text in texts] for texts in fact.written])),
        ]
    return [
        Grid(
            title=f"{reading.kind} edit by {reading.editor}",
            note="; ".join(
                f"{_named(layer)}: its norm is {layer.norm:.3f}, {100 * layer.relative_norm:.2f} % of the values'"
                for layer in reading.layers[:10]
            )
            + ("; ..." if len(reading.layers) > 10 else ""),
            row="layer",
            column="part",
            rows=tuple(_named(layer) for layer in reading.layers),
            columns=columns,
            fields=tuple(fields),
            shown="says first",
        )
    ]


def _named(layer: LayerReading) -> str:
    return f"layer {layer.layer}" + (f", memory {layer.memory}" if layer.memory else "")


def _answers_to(component: Component) -> list[str]:
    return [
        f"neuron {near.neuron} ({near.weight:+.3f}): its key reads {', '.join(map(repr, near.key[:5]))}; "
        f"its value says {', '.join(map(repr, near.value[:5]))}"
        for near in component.neurons
    ]
