"""Asks a model the questions of facts, and the judge about its answers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from corrigenda import Fact, LanguageModel
from corrigenda.forward.generation import decode
from eval.judge.judge import Judge
from eval.judge.verdicts import judge_prompt
from eval.real_use.questions import questions_of
from eval.real_use.settings import RealUse
from eval.records import QUESTION_KIND, AskedQuestion, Measurement
from eval.scoring.free_answers import room_for
from eval.scoring.probabilities import batches


def ask_in_real_use(
    lm: LanguageModel,
    facts: Sequence[Fact],
    measurements: Sequence[Measurement],
    kinds: Collection[str],
    settings: RealUse,
    max_tokens: int,
) -> None:
    """Records greedy answers to questions, and what the judge says of them.

    Args:
        lm: a causal model, with whatever edits are applied.
        facts: the facts.
        measurements: theirs; records of kind "questions" are put there.
        kinds: the kinds of the facts' prompts that are asked about: "prompt", "paraphrases".
        settings: how they are asked.
        max_tokens: tokens run at once, padding included.

    Raises:
        ContextLengthError: a question with its answer may be longer than the model reads.
        JudgeError: the judge cannot be asked.
    """
    questions = [one for number, fact in enumerate(facts) for one in questions_of(lm, number, fact, kinds, settings)]
    answers: dict[int, str] = {}
    limits = [room_for(lm, one.prompt, facts[one.number].answers, settings.max_new_tokens) for one in questions]
    lengths = [len(one.tokens) + limit for one, limit in zip(questions, limits, strict=True)]
    for group in batches(range(len(questions)), lengths, max_tokens):
        added = decode(lm, [questions[i].tokens for i in group], [limits[i] for i in group])
        answers |= {i: lm.text(tokens) for i, tokens in zip(group, added, strict=True)}
    records = [
        AskedQuestion(one.prompt, one.kind, one.setting, one.asked, answers[i]) for i, one in enumerate(questions)
    ]
    for one, record in zip(questions, records, strict=True):
        measurements[one.number].prompts.setdefault(QUESTION_KIND, []).append(record)
    if settings.judge.named:
        put_to_judge(settings.judge, [facts[one.number] for one in questions], records)


def put_to_judge(judge: Judge, facts: Sequence[Fact], records: Sequence[AskedQuestion]) -> None:
    """Records what a judge says of answers; of one without a word it is not asked.

    Args:
        judge: the judge.
        facts: the fact of each record.
        records: the answers.

    Raises:
        JudgeError: the judge cannot be asked.
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
