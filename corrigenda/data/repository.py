"""Records through the `datasets` library: from a local data set repository, or from the Hugging Face hub."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from corrigenda.system.hub import why_unreachable


def folder_records(path: Path, split: str, config: str | None) -> Iterator[object]:
    """The records of a folder with JSON, JSONL or Parquet files, laid out as `datasets` expects.

    Raises:
        FileNotFoundError: the folder holds no data files.
        ValueError: there is no such split or configuration, a file cannot be parsed, or the folder holds too much
            for a data set.
    """
    _require_small(path)
    from datasets.exceptions import DatasetsError

    try:
        yield from _open(str(path), split, config)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{path}: found no data files in this folder ({error}); it needs .json, .jsonl or .parquet files"
        ) from error
    except (ValueError, RuntimeError, DatasetsError) as error:
        raise ValueError(f"{path}, split {split!r}, config {config!r}: {error}") from error


MOST_ENTRIES = 5000
"""A folder with more files and folders in it is no data set, and looking through it takes minutes."""


def _require_small(path: Path) -> None:
    n_entries = 0
    for _, folders, files in os.walk(path):
        n_entries += len(folders) + len(files)
        if n_entries > MOST_ENTRIES:
            raise ValueError(
                f"{path}: has more than {MOST_ENTRIES} files and folders in it; name the file, or the folder, that "
                "holds the data"
            )


def hub_records(hub_id: str, split: str, config: str | None) -> Iterator[object]:
    """The records of a hub data set, streamed; from the cache of `datasets` where the hub cannot be reached.

    Raises:
        FileNotFoundError: the hub has no such data set, or gives no access to it.
        ConnectionError: the hub cannot be reached, or was lost on the way, and the cache has no copy.
        ValueError: there is no such split or configuration, or the data cannot be parsed.
    """
    from datasets.exceptions import DatasetsError

    way_out = _way_out(f"{hub_id.split('/')[-1]}.json")
    unreachable = why_unreachable("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
    try:
        with _datasets_offline() if unreachable else nullcontext():
            records = _open(hub_id, split, config)
        yield from records
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"no data set {hub_id!r} on the Hugging Face hub, or no access to it, and no local file or folder of that "
            f"name ({error}). Check the spelling, log in with `hf auth login` if it is private or gated, or {way_out}"
        ) from error
    except OSError as error:
        reason = f"{unreachable}), and the cache of `datasets` has no copy" if unreachable else f"{error})"
        raise ConnectionError(
            f"cannot read {hub_id!r} from the Hugging Face hub ({reason}; nor is there a local file or folder of that "
            f"name. Connect to the network, or {way_out}"
        ) from error
    except (ValueError, RuntimeError, DatasetsError) as error:
        raise ValueError(f"{hub_id}, split {split!r}, config {config!r}: {error}") from error


def hub_file(hub_id: str, path: str, revision: str | None) -> Path:
    """The local copy of one file of a hub data set, fetched unless the hub's cache has it.

    For sets whose files have different schemas, or records that do not fit into columns of one type.

    Raises:
        FileNotFoundError: the hub has no such data set, revision or file, or gives no access to it.
        ConnectionError: the hub cannot be reached and the cache has no copy.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import RemoteEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    name = f"hf://datasets/{hub_id}{'' if revision is None else f'@{revision}'}/{path}"
    way_out = _way_out(Path(path).name)
    unreachable = why_unreachable("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
    try:
        return Path(
            hf_hub_download(hub_id, path, repo_type="dataset", revision=revision, local_files_only=bool(unreachable))
        )
    except (RemoteEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise FileNotFoundError(
            f"no file {name!r} on the Hugging Face hub, or no access to it ({error}). Check the spelling, log in "
            f"with `hf auth login` if it is private or gated, or {way_out}"
        ) from error
    except OSError as error:
        reason = f"{unreachable}; its cache has no copy" if unreachable else str(error)
        raise ConnectionError(
            f"cannot read {name!r} from the Hugging Face hub ({reason}). Connect to the network, or {way_out}"
        ) from error


def _way_out(file: str) -> str:
    return (
        "download the data set's file and give its local path instead (a .json or .jsonl file or a folder), "
        f"e.g. read_facts('{file}')"
    )


def _open(path: str, split: str, config: str | None) -> Iterable[object]:
    from datasets import load_dataset

    records: Iterable[object] = load_dataset(path, config, split=split, streaming=True)
    return records


@contextmanager
def _datasets_offline() -> Iterator[None]:
    """Make `datasets` go straight to its cache; its switch is read from the environment only at import."""
    from datasets import config

    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before
