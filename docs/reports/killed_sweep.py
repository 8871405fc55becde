"""Kills a sweep on the real model three times, and compares its results with those of an undisturbed sweep.

    python docs/reports/killed_sweep.py [--facts 20] [--minutes 8] [--store outputs/killed-sweep]

Three editors, two data sets, two seeds. Edits and answers are short: the question is whether anything is lost, not how
good the edits are. The last line is a JSON object with the outcome. If --minutes stopped it, the same command goes on:
the undisturbed runs are only stopped between two of them.
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

from options import FILES, OUTPUTS, ROOT, asking, deadline_of
from runs import finished

from corrigenda.runs.records import records_in
from corrigenda.runs.store import Store
from corrigenda.system.files import write_json

EDITORS: dict[str, tuple[str, ...]] = {
    "rome": ("editor.value.steps=5", "editor.prefix_lengths=[[5,4]]"),
    "finetune": ("editor.steps=10",),
    "in_context": (),
}
SHORT = ("eval.max_new_tokens=10", "eval.fluency_tokens=10", "eval.perplexity_windows=3")
SEEDS = (0, 1)
KILLS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asking("--minutes", facts=20, data=FILES, store=OUTPUTS / "killed-sweep", seed=(0, "of the moments"))(parser)
    options = parser.parse_args()
    deadline = deadline_of(options) or math.inf
    runs = {
        (e, d, s): [f"editor={e}", f"data={d}", f"data.path={options.data / d}.json", f"seed={s}", *EDITORS[e]]
        for e, d, s in product(EDITORS, ("counterfact", "zsre"), SEEDS)
    }
    combinations = list(runs.values())
    undisturbed, killed = options.store / "undisturbed", options.store / "killed"
    done = {
        (*(run.config["choices"][key] for key in ("editor", "data")), run.config["seed"])
        for run in finished(Store(undisturbed))
    }
    for overrides in (overrides for key, overrides in runs.items() if key not in done):
        in_time(deadline)
        subprocess.run(command(undisturbed, options.facts, overrides), check=True, cwd=ROOT)
    history = options.store / "kills.json"
    kills: list[int] = json.loads(history.read_text()) if history.is_file() else []
    moments = random.Random(options.seed)
    total = len(combinations) * options.facts
    kill_at = sorted(moments.sample(range(1, total), KILLS))
    while len(finished(Store(killed))) < len(combinations):
        in_time(deadline)
        wanted = next((place for place in kill_at if place > (kills[-1] if kills else 0)), None)
        count = sweep(killed, options.facts, combinations, wanted, deadline)
        if wanted is not None and count >= wanted:
            kills.append(count)
            write_json(history, kills)
    left, right = scored(undisturbed), scored(killed)
    same = [key for key in left if left[key] == right.get(key)]
    print(json.dumps({"runs": len(left), "identical": len(same), "cases": total, "killed_after_cases": kills}))


def command(store: Path, facts: int, overrides: list[str]) -> list[str]:
    common = [f"data.limit={facts}", "data.on_error=skip", f"store={store.resolve()}", "save_edits=false"]
    return [sys.executable, str(ROOT / "run.py"), *overrides, *common, *SHORT]


def sweep(store: Path, facts: int, combinations: list[list[str]], kill_at: int | None, deadline: float) -> int:
    """All runs one after another, killed without warning when so many cases are done; gives how many are."""
    for overrides in combinations:
        process = subprocess.Popen(command(store, facts, overrides), cwd=ROOT, stdout=subprocess.DEVNULL)
        while process.poll() is None:
            if (kill_at is not None and count(store) >= kill_at) or time.monotonic() > deadline:
                time.sleep(random.Random(kill_at).uniform(0, 3))
                process.kill()
                process.wait()
                return count(store)
            time.sleep(1)
    return count(store)


def count(store: Path) -> int:
    """The cases that are on the disk."""
    folders = {path.parent for path in store.rglob("cases.jsonl")}
    return sum(len(list(records_in(folder))) for folder in folders)


def in_time(deadline: float) -> None:
    if time.monotonic() > deadline:
        sys.exit("not finished yet; give the same command again to go on")


def scored(store: Path) -> dict[str, str]:
    """By run the records without the seconds, as text: every bit of a figure counts."""
    return {
        run.id: json.dumps([{key: value for key, value in case.items() if key != "seconds"} for case in run.cases()])
        for run in Store(store).runs()
    }


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
