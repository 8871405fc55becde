"""A task for the lm-evaluation-harness, of a file with questions."""

import pytest

CHOICE_TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc}}]
"""


def only_own_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the look through the harness's own thousands of tasks, which takes 13 seconds each time."""
    from lm_eval.tasks import TaskManager

    monkeypatch.setattr(
        "lm_eval.tasks.TaskManager",
        lambda include_path, include_defaults: TaskManager(include_path=include_path, include_defaults=False),
    )
