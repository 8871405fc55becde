"""What the tests of sweeps share."""

from __future__ import annotations

from typing import Any

CITIES = ["Paris", "London", "Berlin", "Rome"]
SUBJECTS = ["Danielle Darrieux", "Thomas", "Big Ben", "Eiffel", "tower", "river", "red", "blue", "seven", "north"]
ROME = """
prefix_lengths: [[3, 2]]
layer: 1
text: {tokens: 640, length: 16}
"""


def record(number: int) -> dict[str, Any]:
    subject = SUBJECTS[number]
    return {
        "id": f"fact-{number}",
        "subject": subject,
        "prompt": "the city of {} is",
        "target_true": CITIES[number % 4],
        "target_new": CITIES[(number + 1) % 4],
        "paraphrases": [f"{subject} stands in the city of"],
        "neighbourhood": ["the city of green is"],
        "generation": [f"{subject} is"],
    }
