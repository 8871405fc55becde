"""A store of made-up runs, and submissions to it."""

from leaderboard_parts import written as written
from made_runs import make_run as make_run
from made_runs import submission as submission
