"""The metrics as a table, from their declarations."""

from eval import METRICS

BETTER = {"high": "more", "low": "less"}


def table() -> str:
    """Every metric: its key, title, unit, and what is better."""
    rows = [
        f"| `{metric.key}` | {metric.title} | {metric.unit} | {BETTER.get(str(metric.better), '')} |"
        for metric in METRICS.values()
    ]
    head = "| key | metric | unit | better |\n|---|---|---|---|\n"
    return f"\n## Every metric\n\nFrom the declarations in `eval/metrics/`.\n\n{head}" + "\n".join(rows) + "\n"
