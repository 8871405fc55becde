"""Kills runs on a tiny model at random moments, and compares their records with those of undisturbed runs.

    python docs/reports/killed_runs.py [--kills 50] [--seed 0] [--store outputs/killed-runs]

The modes take turns. A run is killed (SIGKILL) after a random time and goes on by the same command; when it came to its
end its records are compared and the next one begins. The last line is a JSON object with the outcome.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path
from typing import Any

from corrigenda.runs.records import RECORDS, records_in

ROOT = Path(__file__).resolve().parents[2]
MODES = ("single", "batch", "sequential")
SUBJECTS = ("Thomas", "Eiffel", "tower", "river", "red", "blue", "seven", "north")
CITIES = ("Paris", "London", "Berlin", "Rome")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--store", type=Path, default=ROOT / "outputs" / "killed-runs")
    options = parser.parse_args()
    home = options.store.resolve()
    shutil.rmtree(home, ignore_errors=True)
    prepare(home)
    moments, kills, runs, same = random.Random(options.seed), 0, 0, 0
    calm = {mode: undisturbed(home, mode) for mode in MODES}
    for number, mode in enumerate(cycle(MODES)):
        folder = home / f"killed-{number:03d}"
        while kills < options.kills and killed(home, mode, folder, moments.uniform(0.5, 1.0) * calm[mode]):
            kills += 1
            print(f"kill {kills}: {mode}, {len(list(records_in(folder)))} records", flush=True)
        subprocess.run(command(home, mode, folder), check=True, cwd=home, stdout=subprocess.DEVNULL)
        runs += 1
        same += scored(folder) == scored(home / mode)
        if kills >= options.kills:
            break
    print(json.dumps({"kills": kills, "runs": runs, "identical": same, "seed": options.seed}))


def prepare(home: Path) -> None:
    """A tiny model and facts."""
    sys.path.insert(0, str(ROOT / "tests"))
    import tiny  # type: ignore[import-not-found]

    tiny.build("llama").save_pretrained(home / "model")
    with (home / "facts.jsonl").open("w", encoding="utf-8") as file:
        for number, subject in enumerate(SUBJECTS):
            true, new = CITIES[number % 4], CITIES[(number + 1) % 4]
            fact = {"id": f"fact-{number}", "subject": subject, "prompt": "the city of {} is"}
            file.write(json.dumps({**fact, "target_true": true, "target_new": new}) + "\n")


def command(home: Path, mode: str, folder: Path) -> list[str]:
    small = ["editor.prefix_lengths=[[3,2]]", "editor.text.tokens=640", "editor.text.length=16", "editor.layer=1"]
    steps = ["job.sequential.checkpoints=[2,5]", "job.sequential.every=2", "job.sequential.chunk=2"]
    data = ["data=facts", f"data.path={home / 'facts.jsonl'}", "eval=probabilities", f"mode={mode}"]
    place = ["model=own", f"model.name={home / 'model'}", "model.device=cpu", f"hydra.run.dir={folder}"]
    return [sys.executable, str(ROOT / "run.py"), *place, f"store={folder}-store", *data, *small, *steps]


def undisturbed(home: Path, mode: str) -> float:
    """Makes a run that nothing disturbs; gives the seconds that it took."""
    begin = time.monotonic()
    subprocess.run(command(home, mode, home / mode), check=True, cwd=home, stdout=subprocess.DEVNULL)
    return time.monotonic() - begin


def killed(home: Path, mode: str, folder: Path, seconds: float) -> bool:
    """Runs, and kills after so many seconds; False if it had come to its end by then."""
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command(home, mode, folder), cwd=home, **quiet) as process:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            return True
    return False


def scored(folder: Path) -> str:
    """The records without the seconds, as text: every bit of a figure counts."""
    found = {of: [{**record, "seconds": None} for record in records_in(folder, of)] for of in RECORDS}
    return json.dumps(found)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
