"""Jobs: what `run.py` can do, one file each, found by the name that `job=` gives (`jobs.shared.registry` says how).

`explain` is for the library's user, too: it brings locating, editing and evaluating together for one fact.
"""

from typing import TYPE_CHECKING

from corrigenda.system.lazy import lazily

if TYPE_CHECKING:
    from jobs.explain.explanation import Explanation as Explanation
    from jobs.explain.explanation import explain as explain
    from jobs.explain.settings import ExplainSettings as ExplainSettings
    from jobs.shared.job import Job as Job
    from jobs.shared.job import StoreJob as StoreJob

__all__ = lazily(__name__)
