import json
import subprocess
import sys
from pathlib import Path

import program
import pytest
import tiny

from corrigenda import LanguageModel

CITIES = ["Paris", "London", "Berlin", "Rome"]
SUBJECTS = ["Danielle Darrieux", "Thomas", "Big Ben", "Eiffel", "tower", "river", "red", "blue", "seven", "north"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, ten facts about words it knows, and a cache of its own."""
    home = tmp_path_factory.mktemp("run")
    tiny.build("llama").save_pretrained(home / "model")
    with (home / "facts.jsonl").open("w") as file:
        for number, subject in enumerate(SUBJECTS):
            true, new = CITIES[number % 4], CITIES[(number + 1) % 4]
            fact = {
                "id": f"fact-{number}",
                "subject": subject,
                "prompt": "the city of {} is",
                "target_true": true,
                "target_new": new,
                "paraphrases": [f"{subject} stands in the city of"],
                "neighbourhood": ["the city of green is", "the city of nine is"],
                "locality": [{"prompt": "the capital of France is", "answer": "Paris"}],
                "portability": [{"prompt": f"{subject} is in the country of", "answer": "Italy"}],
                "generation": [f"{subject} is"],
            }
            file.write(json.dumps(fact) + "\n")
    return home


def arguments_of(home: Path, *overrides: str) -> list[str]:
    small = ["editor.prefix_lengths=[[3,2]]", "editor.text.tokens=640", "editor.text.length=16", "editor.layer=1"]
    return [
        "model=own",
        f"model.name={home / 'model'}",
        "model.device=cpu",
        "data=facts",
        f"data.path={home / 'facts.jsonl'}",
        "eval.perplexity_windows=3",
        "eval.perplexity_window=16",
        "eval.max_new_tokens=4",
        "eval.fluency_tokens=8",
        *([] if any(override.startswith(("editor=", "resume=")) for override in overrides) else small),
        *overrides,
    ]


def run(home: Path, *overrides: str, succeeds: bool = True) -> str:
    return program.call(home, *arguments_of(home, *overrides), succeeds=succeeds)


@pytest.mark.slow
def test_real_facts_in_the_real_model(smollm2: LanguageModel, tmp_path: Path) -> None:
    arguments = [
        sys.executable,
        str(program.RUN),
        "data.limit=3",
        "eval=probabilities",
        f"hydra.run.dir={tmp_path / 'out'}",
    ]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    metrics = json.loads((tmp_path / "out" / "summary.json").read_text())["metrics"]
    assert metrics["efficacy_success"]["after"] == 1.0
    assert metrics["paraphrase_success"]["after"] >= 0.8
