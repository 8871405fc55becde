import json
import subprocess
import sys
from pathlib import Path

import program
import pytest

from corrigenda import LanguageModel


@pytest.mark.slow
def test_a_real_fact_in_the_real_model(smollm2: LanguageModel, tmp_path: Path) -> None:
    arguments = [
        sys.executable,
        str(program.RUN),
        "data.limit=1",
        "eval=probabilities",
        "eval.perplexity_windows=3",
        f"hydra.run.dir={tmp_path / 'out'}",
    ]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    metrics = json.loads((tmp_path / "out" / "summary.json").read_text())["metrics"]
    assert metrics["efficacy_success"]["after"] == 1.0
    assert metrics["paraphrase_success"]["after"] >= 0.8
