"""Windows of layers: several at once, named by the one around which they lie."""


def around(layer: int, width: int, depth: int) -> range:
    """The layers [layer - width // 2, layer + ceil(width / 2)), clipped at the ends of a model of `depth` layers."""
    return range(max(0, layer - width // 2), min(depth, layer - (-width // 2)))
