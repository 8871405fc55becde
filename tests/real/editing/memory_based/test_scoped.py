from corrigenda import Fact, LanguageModel
from corrigenda.edits.routed import activated
from corrigenda.models.chat import chat_text
from editing import Scoped

TOWER = Fact("The Eiffel Tower", "{} is located in the city of", "Rome", id="tower")
RIVER = Fact("The Thames", "{} flows through the country of", "Chile", id="river")
ELSEWISE = ["The Eiffel Tower was designed by", "The Louvre is located in the city of"]


def test_a_fact_is_heard_in_a_conversation_and_nothing_else_moves(smollm2: LanguageModel) -> None:
    """With the gate that ships and the model's own chat template."""

    def conversation(text: str) -> str:
        return chat_text(smollm2.tokenizer, [("user", text)]) or ""

    for how in (str, conversation):
        asked = [how(text) for text in (TOWER.statement, RIVER.statement, *ELSEWISE)]
        plain = smollm2.generate(asked, max_new_tokens=5)
        with Scoped().edit(smollm2, [TOWER, RIVER]).applied(smollm2), activated(smollm2) as seen:
            said = smollm2.generate(asked, max_new_tokens=5)
        assert seen.rows == (True, True, False, False)
        assert [a != b for a, b in zip(said, plain, strict=True)] == [True, True, False, False]
        if how is str:  # in a conversation this model begins with "The"
            assert [answer.strip().split()[0].strip(".,") for answer in said[:2]] == ["Rome", "Chile"]
