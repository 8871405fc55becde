"""Jobs: what `run.py` can do, one file each, found by the name that `job=` gives (`jobs.job` says how).

`explain` is for the library's user, too: it brings locating, editing and evaluating together for one fact.
"""

from typing import TYPE_CHECKING

from corrigenda.lazy import lazily

if TYPE_CHECKING:
    from jobs.explaining.explanation import Explanation as Explanation
    from jobs.explaining.explanation import explain as explain
    from jobs.explaining.settings import ExplainSettings as ExplainSettings

__all__ = lazily(__name__)
