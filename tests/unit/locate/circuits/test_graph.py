import pytest

from locate.circuits.graph import Graph


@pytest.mark.parametrize(("layers", "heads", "edges"), [(30, 9, 123_211), (12, 12, 32_491), (24, 14, 179_749)])
def test_so_many_edges_as_published(layers: int, heads: int, edges: int) -> None:
    """SmolLM2-135M by hand: the sum over layers l of 37 + 280 l, and 301; GPT-2 and Qwen2.5-0.5B as MIB counts."""
    graph = Graph(layers, heads)
    assert (graph.n_edges, len(graph.edges)) == (edges, edges)
    assert (len(graph.sources), len(graph.readers)) == (graph.n_sources, graph.n_readers)


def test_ffns_beside_attention_do_not_read_the_layers_heads() -> None:
    beside, behind = Graph(2, 4, parallel=True), Graph(2, 4)
    assert behind.n_edges - beside.n_edges == 2 * 4
    assert behind.exists[behind.readers.index("1.ffn")].sum() == 1 + 5 + 4
    assert beside.exists[beside.readers.index("1.ffn")].sum() == 1 + 5


def test_an_edge_has_a_number_by_its_ends() -> None:
    graph = Graph(2, 4)
    number = graph.number("0.head 3", "1.head 2.k")
    reader, source = graph.edges[number].tolist()
    assert (graph.readers[reader], graph.sources[source]) == ("1.head 2.k", "0.head 3")
    with pytest.raises(ValueError, match=r"'0\.ffn' does not read '1\.ffn'"):
        graph.number("1.ffn", "0.ffn")
    with pytest.raises(ValueError, match=r"no source '2\.ffn'"):
        graph.number("2.ffn", "logits")
