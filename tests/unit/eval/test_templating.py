from markupsafe import Markup

from eval.templating import environment


def test_texts_are_escaped_in_both_senses() -> None:
    page = environment("eval.verification").from_string("{{ text }}|{{ markup }}|{{ number }}")
    shown = page.render(text="<b>\x1b[2J\u202eexe\nsecond", markup=Markup("<b>"), number=-5)
    assert shown == "&lt;b&gt;\\x1b[2J\\u202eexe\nsecond|<b>|-5"
