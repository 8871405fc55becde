"""docs/figures/overview.png: what the product does, in one look, from real output.

    python docs/figures/overview.py collect      runs SmolLM2 on four embedded facts -> docs/figures/overview.json
    python docs/figures/overview.py draw         docs/figures/overview.json -> docs/figures/overview.png, in seconds

Each fact is edited by ROME from the clean model; where the first of them lies is traced. Nothing on the picture is
written by hand but the headings.
"""

import argparse
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DATA, PICTURE = HERE / "overview.json", HERE / "overview.png"
FACTS = 4
WORDS = 26
"""How many characters of an answer are shown."""
SHOWN = {
    "free_generation_strict": "edited facts said freely",
    "paraphrase_success": "paraphrases follow",
    "neighbourhood_success": "neighbours keep theirs",
}
"""The metrics on the picture, and in plain words what each says."""
BEFORE, AFTER = "#b0b7bf", "#00796b"


def collect() -> dict[str, Any]:
    """What the picture is drawn from: answers before and after, the trace by layer, the metrics."""
    from corrigenda import load
    from corrigenda.data.embedded import embedded_facts
    from editing import Rome
    from eval import EvalSettings, Evaluation, evaluate
    from locate import causal_trace

    lm, facts, rome = load("smollm2-135m"), embedded_facts()[:FACTS], Rome()
    trace = causal_trace(lm, facts[0], site="ffn")
    settings = EvalSettings(max_new_tokens=8, fluency_tokens=8, perplexity_windows=0)
    answers, cases = [], []
    for fact in facts:
        before = lm.generate(fact.statement, max_new_tokens=8)
        edit = rome.edit(lm, [fact])
        with edit.applied(lm):
            after = lm.generate(fact.statement, max_new_tokens=8)
            cases += evaluate(lm, [fact], settings).cases
        told = {"statement": fact.statement, "old": fact.target_true, "new": fact.target_new}
        answers.append(told | {"before": before, "after": after})
    metrics = Evaluation(tuple(cases)).metrics
    return {
        "model": "smollm2-135m",
        "editor": rome.name,
        "layer": rome.resolved_layer(lm),
        "answers": answers,
        "trace": traced(trace),
        "metrics": {key: metrics[key] for key in SHOWN},
    }


def traced(trace: Any) -> dict[str, Any]:
    """What the picture shows of a trace: the tokens, those of the subject, and P by layer and token."""
    scores = [[round(score, 4) for score in layer] for layer in trace.scores.tolist()]
    return {"window": trace.window, "tokens": list(trace.tokens), "subject": list(trace.subject), "scores": scores}


def draw(found: dict[str, Any], path: Path) -> None:
    """Draws the picture: a list, where a fact lies, the answers before and after, what the edits did."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.4), facecolor="white")
    answers, n = found["answers"], len(found["answers"])
    heads = ("a list of facts", "locate", "edit", "evaluate")
    lefts = (0.015, 0.275, 0.475, 0.815)
    for number, (head, left) in enumerate(zip(heads, lefts, strict=True), start=1):
        figure.text(left, 0.91, f"{number}  {head}", fontsize=15, weight="bold", color=AFTER)
    rows = [0.74 - 0.6 * place / n for place in range(n)]
    for row, answer in zip(rows, answers, strict=True):
        figure.text(lefts[0], row, _folded(answer["statement"]), fontsize=10, va="top")
        figure.text(lefts[0], row - 0.055, f"{answer['old']}  →  {answer['new']}", fontsize=10, va="top", weight="bold")
        figure.text(lefts[2], row, _cut(answer["before"]), fontsize=10, va="top", color="#5f6771")
        figure.text(lefts[2] + 0.165, row, _cut(answer["after"]), fontsize=10, va="top", color=AFTER, weight="bold")
    figure.text(lefts[2], 0.81, "the model said", fontsize=10, style="italic", color="#5f6771")
    figure.text(lefts[2] + 0.165, 0.81, "and says now", fontsize=10, style="italic", color=AFTER)

    trace = found["trace"]
    grid = figure.add_axes((lefts[1] + 0.055, 0.2, 0.115, 0.55))
    grid.pcolormesh([[100 * score for score in token] for token in zip(*trace["scores"], strict=True)], cmap="BuGn")
    grid.invert_yaxis()
    begin, end = trace["subject"]
    marked = [f"{token.strip()}{' *' * (begin <= place < end)}" for place, token in enumerate(trace["tokens"])]
    grid.set_yticks([place + 0.5 for place in range(len(marked))], marked)
    grid.set_xlabel("layer")
    grid.set_title("where FFN outputs\nbring the answer back", fontsize=9)

    bars = figure.add_axes((lefts[3] + 0.005, 0.2, 0.165, 0.55))
    for place, (key, words) in enumerate(SHOWN.items()):
        metric = found["metrics"][key]
        for shift, part, colour in ((0.19, "before", BEFORE), (-0.19, "after", AFTER)):
            share = 100 * metric[part]
            bars.barh(2 - place + shift - 0.12, share, height=0.34, color=colour)
            bars.text(share + 2, 2 - place + shift - 0.12, f"{share:.0f} %", va="center", fontsize=9)
        bars.text(0, 2 - place + 0.36, words, fontsize=9)
    bars.set_xlim(0, 125)
    bars.set_ylim(-0.6, 2.65)
    bars.set_yticks([])
    bars.set_xticks([0, 50, 100])
    for axes in (grid, bars):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=9)
    told = f"{found['model']}, {found['editor'].upper()}, layer {found['layer']}; {n} facts, each edited alone"
    figure.text(lefts[0], 0.03, f"{told}. Grey: before. Green: after.", fontsize=9, color="#5f6771")
    figure.savefig(path, dpi=110, metadata={"Software": ""})


def _folded(text: str) -> str:
    """The end of a statement, where it is long."""
    return text if len(text) <= 44 else f"… {text[-42:].split(' ', 1)[-1]}"


def _cut(text: str) -> str:
    """The beginning of an answer, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= WORDS else f"{line[:WORDS].rsplit(' ', 1)[0]} …"


def main() -> None:
    """The two steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("collect", "draw"))
    if parser.parse_args().step == "collect":
        DATA.write_text(json.dumps(collect(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    else:
        draw(json.loads(DATA.read_text(encoding="utf-8")), PICTURE)


if __name__ == "__main__":
    main()
