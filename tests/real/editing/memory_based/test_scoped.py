from corrigenda import Fact, LanguageModel
from corrigenda.edits.routed import activated
from corrigenda.models.chat import chat_text
from editing import Scoped
from editing.shared.frames import Frames

TOWER = Fact("The Eiffel Tower", "{} is located in the city of", "Rome", id="tower")
RIVER = Fact("The Thames", "{} flows through the country of", "Japan", id="river")
ELSEWISE = ["The Eiffel Tower was designed by", "The Louvre is located in the city of"]


def test_a_fact_holds_in_a_conversation_and_nothing_else_moves(smollm2: LanguageModel) -> None:
    """With the gate that ships and the model's own chat template."""

    def conversation(text: str) -> str:
        return chat_text(smollm2.tokenizer, [("user", text)]) or ""

    for how in (str, conversation):
        asked = [how(text) for text in (TOWER.statement, RIVER.statement, *ELSEWISE)]
        plain = smollm2.generate(asked, max_new_tokens=5)
        edit = Scoped(frames=Frames(chat=True)).edit(smollm2, [TOWER, RIVER])
        with edit.applied(smollm2), activated(smollm2) as seen:
            said = smollm2.generate(asked, max_new_tokens=5)
        assert seen.rows == (True, True, False, False)
        assert said[0].strip().startswith(TOWER.target_new)
        assert said[1].strip().startswith(RIVER.target_new)
        assert said[2:] == plain[2:]
