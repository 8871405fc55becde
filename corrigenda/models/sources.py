"""Where a model is, by the name that `load` takes: a folder, a GGUF file, a wheel or a hub; its configuration."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from corrigenda.errors import CorrigendaError, DamagedModelError, ModelNotFoundError
from corrigenda.models import embedded, gguf_files
from corrigenda.system.files import expanded
from corrigenda.system.hub import offline, why_unreachable


def config_of(name: str | Path) -> Any:
    """The configuration of a model that `load` finds by this name, as transformers has it.

    Raises:
        DamagedModelError: it cannot be read.
        ModelNotFoundError: nothing goes by that name.
        ConnectionError: it has to be fetched and the network does not answer.
    """
    from transformers import AutoConfig  # seconds to import

    source = local_folder(name, expanded(name)) or str(name)
    with reaching(name, source), reading(name, "configuration (config.json)"):
        return AutoConfig.from_pretrained(source)


def local_folder(name: str | Path, path: Path) -> Path | None:
    """The folder with a model that is on this machine, or is fetched in wheels; None of a hub id.

    Raises ModelNotFoundError: it can only be a path, and there is no model.
    """
    if str(name) in embedded.EMBEDDED:
        return embedded.fetch(str(name))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFoundError(
                f"the folder {path} holds no model: it has no config.json (write one with save_pretrained)"
            )
        return path
    if path.suffix == ".gguf":
        with reading(name, "GGUF file"):
            return gguf_files.converted(path)
    if path.is_file():
        raise ModelNotFoundError(f"{path} is a file and no model: give its folder, or a .gguf file")
    if path.is_absolute() or str(name).count("/") > 1 or str(name).startswith((".", "~")):
        raise ModelNotFoundError(f"there is no model folder {path}")
    return None


@contextmanager
def reaching(name: str | Path, source: str | Path) -> Iterator[None]:
    """Without a network nothing is asked of a hub; what then fails is one error that says what to do."""
    unreachable = "" if isinstance(source, Path) else why_unreachable("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    try:
        with offline() if unreachable else nullcontext():
            yield
    except OSError as error:
        raise _explained(name, error, unreachable) from None


@contextmanager
def reading(name: str | Path, part: str) -> Iterator[None]:
    """Turns what the libraries raise at a part of a model that they cannot read into one line that names the part."""
    try:
        yield
    except (CorrigendaError, OSError):  # said in a line already, or by `reaching`
        raise
    except Exception as error:
        said = " ".join(str(error).split())
        if "trust_remote_code" in said:
            why = "it has code of its own; pass trust_remote_code=True if you trust it"
        elif match := re.search(r"GGUF model with architecture (\S+) is not supported", said):
            why = f"transformers reads none of the architecture {match[1]!r}; give the model's hub id or a folder"
        elif "does not recognize this architecture" in said or "Unrecognized model" in said:
            kind = re.search(r"model type `([^`]*)`", said)
            named = f"model_type {kind[1]!r}" if kind else "no model_type in its config.json"
            why = f"{named}, which the installed transformers does not know"
        elif isinstance(error, ImportError):
            why = (
                f"the checkpoint is quantised, or needs a package that is not installed ({said[:200]}); install it, or "
                "take the unquantised checkpoint, which can also be edited"
            )
        else:
            why = f"{type(error).__name__}: {said[:300]}"
        raise DamagedModelError(f"the {part} of the model {str(name)!r} cannot be read: {why}") from None


def _explained(name: str | Path, error: OSError, unreachable: str) -> OSError:
    """One clear error for what transformers and the hub's client raise when a model cannot be fetched."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__
    names = {type(link).__name__ for link in chain}
    known = f"known without a hub: {', '.join(embedded.EMBEDDED)}, a folder, a .gguf file"
    lost = {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectError", "ConnectionError", "ConnectTimeout"}
    log_in = "log in (`hf auth login`, or the variable HF_TOKEN)"
    if "GatedRepoError" in names:
        return ModelNotFoundError(
            f"the model {str(name)!r} is gated: accept its terms at https://huggingface.co/{name} with your account, "
            f"then {log_in} and try again"
        )
    if "RevisionNotFoundError" in names:
        return ModelNotFoundError(f"the model {str(name)!r} has no such revision; leave it out for the newest")
    if names & {"RepositoryNotFoundError", "HFValidationError"}:
        return ModelNotFoundError(f"the hub has no model {str(name)!r}, or it is private: then {log_in}; {known}")
    if unreachable or names & lost:
        reason = f" ({unreachable})" if unreachable else ""
        return ConnectionError(
            f"the model {str(name)!r} is not on this machine and the hub cannot be reached{reason}; {known}"
        )
    return ModelNotFoundError(f"{str(name)!r} could not be loaded as a model: {' '.join(str(error).split())[:400]}")
