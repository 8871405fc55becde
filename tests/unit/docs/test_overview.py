import json

import overview


def test_the_kept_picture_is_small_and_of_real_answers() -> None:
    assert overview.PICTURE.stat().st_size < 150_000
    kept = json.loads(overview.DATA.read_text(encoding="utf-8"))
    assert len(kept["answers"]) == overview.FACTS
    assert set(kept["metrics"]) == set(overview.SHOWN)
