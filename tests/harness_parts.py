"""What the tests of the harness of tasks share."""

QUESTIONS = [
    "the capital of France is",
    "Big Ben is located in",
    "Thomas speaks",
    "the river is in",
    "the tower stands",
]
CHOICES = [
    ["Paris", "Rome", "London"],
    ["London", "Berlin"],
    ["French", "English", "Dutch"],
    ["Italy", "France"],
    ["in the city of Rome", "on a river", "at"],
]
ANSWER_TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{said}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 2, do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""


def continuations() -> list[tuple[str, str]]:
    return [(q, f" {c}") for q, choices in zip(QUESTIONS, CHOICES, strict=True) for c in choices]
