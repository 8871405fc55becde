"""Asks a model the questions of facts, and the judge about its answers."""

from collections.abc import Sequence

from corrigenda import Fact, LanguageModel
from corrigenda.forward.generation import decode
from eval.judge.judge import Judge
from eval.judge.verdicts import judge_prompt
from eval.measurement import Measurement
from eval.records import QUESTION_KIND, AskedQuestion
from eval.scoring.fitting import Prepared
from eval.scoring.probabilities import batches


def ask_in_real_use(
    lm: LanguageModel, prepared: Sequence[Prepared], measurements: Sequence[Measurement], judge: Judge, max_tokens: int
) -> None:
    """Records greedy answers to questions of prepared facts as kind "questions", and what the judge says of them.

    At most `max_tokens` are run at once, padding included. Raises JudgeError: the judge cannot be asked.
    """
    asked = [(number, *question) for number, one in enumerate(prepared) for question in one.questions]
    records = [AskedQuestion(one.prompt, one.kind, one.setting, one.asked) for _, one, _ in asked]
    for group in batches(range(len(asked)), [len(one.tokens) + limit for _, one, limit in asked], max_tokens):
        added = decode(lm, [asked[i][1].tokens for i in group], [asked[i][2] for i in group])
        for i, tokens in zip(group, added, strict=True):
            records[i].answer = lm.text(tokens)
    for (number, *_), record in zip(asked, records, strict=True):
        measurements[number].prompts.setdefault(QUESTION_KIND, []).append(record)
    if judge.named:
        put_to_judge(judge, [prepared[number].fact for number, *_ in asked], records)


def put_to_judge(judge: Judge, facts: Sequence[Fact], records: Sequence[AskedQuestion]) -> None:
    """Records what a judge says of answers, each to a fact; of one without a word it is not asked.

    Raises JudgeError: the judge cannot be asked.
    """
    asked = [
        (record, judge_prompt(record.question, fact.answers, record.answer))
        for fact, record in zip(facts, records, strict=True)
        if record.answer.strip()
    ]
    for record in records:
        record.reply = ""
    for (record, _), reply in zip(asked, judge.replies([prompt for _, prompt in asked]), strict=True):
        record.reply = reply
