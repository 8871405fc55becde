"""The log of a run, and folders that were made for a run which then went elsewhere or nowhere."""

import logging
import re
from contextlib import suppress
from pathlib import Path


def log_to(folder: Path, instead_of: Path) -> None:
    """From now on what is logged goes to a folder's log, with what went to another one's so far."""
    for handler in _handlers(instead_of):
        handler.close()
        old = Path(handler.baseFilename)
        new = folder.resolve() / old.name
        if old.is_file():
            with new.open("a", encoding="utf-8") as file:
                file.write(old.read_text(encoding="utf-8"))
            old.unlink()
        handler.baseFilename = str(new)  # opened at the next line


def remove_if_unused(folder: Path) -> None:
    """Removes the folder of a run that was not begun there, if there is nothing in it but a log."""
    handlers = _handlers(folder)
    logs = {Path(handler.baseFilename).name for handler in handlers}
    if {path.name for path in folder.iterdir()} - logs:
        return
    for handler in handlers:
        handler.close()
        logging.getLogger().removeHandler(handler)
        Path(handler.baseFilename).unlink(missing_ok=True)
    with suppress(OSError):  # another process has put something there, or in the folder of the day
        folder.rmdir()
        if re.fullmatch(r"\d{4}-\d\d-\d\d", folder.parent.name):
            folder.parent.rmdir()


def _handlers(folder: Path) -> list[logging.FileHandler]:
    """The handlers that write into a folder."""
    found = [handler for handler in logging.getLogger().handlers if isinstance(handler, logging.FileHandler)]
    return [handler for handler in found if Path(handler.baseFilename).resolve().parent == folder.resolve()]
