"""The real model, loaded once. It is kept, with its moments, in the user's cache: making them anew takes minutes."""

from collections.abc import Iterator

import pytest

from corrigenda import LanguageModel, load


@pytest.fixture(autouse=True, scope="module")
def cache_of_the_user(users_cache: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CORRIGENDA_CACHE", users_cache)
        yield


@pytest.fixture(scope="session")
def smollm2(users_cache: str) -> LanguageModel:
    """The real default model. Tests revert what they apply."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CORRIGENDA_CACHE", users_cache)
        return load("smollm2-135m")
