"""The leaderboard: many runs of the store side by side, with intervals and paired tests."""

from eval.leaderboard.boards import Leaderboard
from eval.leaderboard.page import write_leaderboard
from eval.leaderboard.submission_form import submission_schema
from eval.leaderboard.submissions import add_submission
from eval.leaderboard.table import leaderboard

__all__ = ["Leaderboard", "add_submission", "leaderboard", "submission_schema", "write_leaderboard"]
