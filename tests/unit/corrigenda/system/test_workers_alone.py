import sys

import pytest

from corrigenda.system.workers import Workers, _next


def double(shared: list[int], item: int) -> int:
    shared.append(item)
    return 2 * item


def test_in_one_process_items_are_done_when_they_are_asked_for() -> None:
    done: list[int] = []
    found = Workers().each(done, double, [3, 4], str)
    assert next(found) == (0, 6)
    assert done == [3]
    assert list(found) == [(1, 8)]


def test_items_that_go_together_stay_with_a_worker_until_one_is_idle() -> None:
    left = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c"}
    assert _next(left, "b", {"a"}) == 3  # its own
    assert _next(left, None, {"a", "b"}) == 5  # what nobody is at
    assert _next({1: "a", 2: "a", 3: "b"}, "c", {"a", "b"}) == 3  # it helps, from the end
    assert _next({}, "a", set()) is None


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"workers.number=2 needs ray: pip install 'corrigenda\[ray\]'"):
        list(Workers(2).each([], double, [1], str))


def test_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")

    def nowhere(**asked: object) -> None:
        raise ConnectionError(f"nothing at {asked['address']}\nand more")

    monkeypatch.setattr(ray, "init", nowhere)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    said = r"^workers.address=auto: ray cannot be .* \(.*nothing at auto\); if it asks for a token, set RAY"
    with pytest.raises(ConnectionError, match=said):
        list(Workers(2, "auto").each([], double, [1], str))
