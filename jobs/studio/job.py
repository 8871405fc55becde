"""``job=studio``: a page in the browser to work in."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge, Le
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from corrigenda.errors import LockedError, SettingsError
from corrigenda.runs.locks import locked
from corrigenda.settings.checked import checked
from corrigenda.system.files import expanded
from editing.registry import EDITORS
from jobs.shared.base import choices, load_model, say
from jobs.shared.errors import RunInterrupted
from jobs.shared.job import StoreJob
from jobs.shared.registry import register
from jobs.shared.settings import check, instantiate_editor
from jobs.studio.access import HERE, password_for, require_free, require_inside, wait_until_up

if TYPE_CHECKING:
    from editing import Editor
    from jobs.studio.session import Session

AIMS = {
    "rome": "one fact for the weights",
    "emmet": "tens, as a list that changes",
    "memit": "hundreds for the weights",
    "scoped": "a model that can load an edit beside it",
}
"""The editors that can be chosen, and what each is for, as the README's table has it."""


@dataclass(frozen=True)
@checked
class StudioSettings:
    """``job=studio``: ``corrigenda studio corrections.jsonl``.

    Attributes:
        list: the file of the corrections, as ``job=build`` reads it; it is made when one is added.
        folder: where pictures, pages, adapters and reports are written.
        host: the address to listen on; one that other machines reach needs a password in $CORRIGENDA_STUDIO_PASSWORD.
        port: the port to listen on.
        open: whether a browser is opened.
    """

    group: ClassVar[str] = "job"

    list: str = "corrections.jsonl"
    folder: str = "studio"
    host: str = "127.0.0.1"
    port: Annotated[int, Ge(1), Le(65535)] = 8050
    open: bool = True


@register("studio", StudioSettings, aim="a page in the browser to correct a model in, ask it, and take the edit along")
class Job(StoreJob):
    """Serves the page until it is interrupted."""

    def run(self, config: DictConfig) -> None:
        """Serves it.

        Raises:
            SettingsError: NiceGUI is missing, the port is in use, a path lies outside of this folder, or an address
                that others reach comes without a password.
            LockedError: another studio works on the list.
            ValueError: the file is no list.
            RunInterrupted: Ctrl-C was pressed.
        """
        asked = check(StudioSettings, config.job)
        if importlib.util.find_spec("nicegui") is None:
            raise SettingsError("job=studio needs NiceGUI: pip install 'corrigenda[studio]'")
        path, folder = (require_inside(name, expanded(config.job[name])) for name in ("list", "folder"))
        password = password_for(asked.host)
        require_free(asked.host, asked.port)
        from jobs.studio.corrections import Corrections
        from jobs.studio.session import Session

        corrections = Corrections(path)
        session: Session | None = None
        try:
            with locked(path.with_name(f".{path.name}.lock")):
                session = Session(load_model(config), corrections, _editors(config), folder, _model())
                serve(session, asked, password)
        except LockedError:
            raise LockedError(
                f"job.list={path}: another studio works on it; end that one, or name another list"
            ) from None
        except KeyboardInterrupt:
            _end(session, path)
            raise RunInterrupted(f"the list is in {path}") from None
        _end(session, path)


def _end(session: Session | None, path: Path) -> None:
    """Ends the program at once where a thread is at work, for which Python would wait."""
    if session is not None and session.doing is not None:
        sys.stderr.write(f"interrupted; the list is in {path}\n")
        os._exit(130)


def _model() -> list[str]:
    """What of the command line chooses the model: the settings, and the folder of a configuration of the user's own."""
    given = HydraConfig.get()
    own = [source.path for source in given.runtime.config_sources if source.provider == "command-line"]
    flags = [part for path in own for part in ("--config-dir", path.removeprefix("file://"))]
    return [*flags, *(one for one in given.overrides.task if one.startswith("model"))]


def _editors(config: DictConfig) -> Mapping[str, Editor]:
    """Those of `AIMS`; the one that is chosen comes first, with its settings: the command line's, or as tuned."""
    first = {choices()["editor"]: instantiate_editor(config.editor)}
    return {**first, **{name: EDITORS[name]() for name in AIMS if name not in first}}


def serve(session: Session, asked: StudioSettings, password: str | None) -> None:
    """Serves the page of a session until the program is ended."""
    from nicegui import app, ui
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.staticfiles import StaticFiles

    from jobs.studio.access import Password
    from jobs.studio.view import View

    app.mount("/files", StaticFiles(directory=session.folder, check_dir=False))
    if asked.host in HERE:  # a page from elsewhere that gives its own name this machine's address is refused
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(HERE))
    if password is not None:
        app.add_middleware(Password, password=password)

    def tell() -> None:
        wait_until_up(asked.host, asked.port)
        say(f"the studio is at http://{asked.host}:{asked.port} (Ctrl-C ends it)")

        session.prepare(next(iter(session.editors)))

    threading.Thread(target=tell, daemon=True).start()
    ui.run(
        lambda: View(session, AIMS),
        host=asked.host,
        port=asked.port,
        title="Corrigenda studio",
        language="en-US",
        dark=None,
        tailwind=False,
        reload=False,
        show=asked.open,
        show_welcome_message=False,
        reconnect_timeout=30,  # seconds; a busy machine may keep a tab waiting
        timeout_graceful_shutdown=1,  # an open tab would be waited for
    )
