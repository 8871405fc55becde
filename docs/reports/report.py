"""The command of a page of figures: its steps.

    python docs/reports/NAME.py collect ...     runs -> docs/data/PAGE.json; can be stopped, and goes on
    python docs/reports/NAME.py digest          the statistics in docs/data/PAGE.json anew, from its figures
    python docs/reports/NAME.py page            docs/data/PAGE.json -> docs/PAGE.md and its pictures, in seconds

The last two need no model: the same data give the same page. `collect` ends with the digest; its options are told by
--help. It can be stopped (after --minutes it stops by itself) and given again: what is finished is kept in a work
folder or a store. Where it adds to what the data file has, --anew forgets that.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from options import Data, NotFinishedError
from pages import DOCS, Collected, anywhere, data_path, read_data, write_data, write_rows
from words import provenance, rendered

from corrigenda.system.files import write_text

Draw = Callable[[Data, Path], None]


@dataclass(frozen=True)
class Report:
    """A page of figures: docs/NAME.md, docs/data/NAME.json and docs/templates/NAME.md."""

    name: str
    script: str  # the command's file in docs/reports
    title: str | None  # what the command is for, in its first line
    options: Callable[[argparse.ArgumentParser], None]  # adds the first step's options
    collect: Callable[[argparse.Namespace], Collected | None]  # None where it is not finished, as `NotFinishedError`
    digest: Callable[[Any], Data] | None = None  # the statistics that the page shows, from the figures
    shown: Callable[[Data], Data] | None = None  # what the template shows, from the data
    # By file name in docs/figures, what draws it from the data to a path; or what says so of the data.
    pictures: Mapping[str, Draw] | Callable[[Data], Mapping[str, Draw]] = field(default_factory=dict)
    timed: bool = False  # whether the page has seconds
    # Whether the figures are those of models (`beside`): then the digest is of one model's.
    of_models: bool = False
    write_page: Callable[[Data, Path], list[Path]] | None = None  # in place of the template alone

    def main(self, arguments: list[str] | None = None) -> None:
        """The command line of all steps."""
        parser = argparse.ArgumentParser(description=(self.title or "").partition("\n")[0])
        steps = parser.add_subparsers(dest="step", required=True)
        data = f"docs/data/{self.name}.json"
        told = {"collect": f"make {data} from runs; goes on where it stopped"}
        told["page"] = f"make docs/{self.name}.md from {data}"
        told |= {"digest": f"work out the intervals and p-values in {data} anew"} if self.digest else {}
        for step, what in told.items():
            step_options = steps.add_parser(step, help=what)
            step_options.add_argument(
                "--docs", type=Path, default=DOCS, help="folder of the page; its data are in data/"
            )
        self.options(steps.choices["collect"])
        options = parser.parse_args(arguments)
        if options.step == "page":
            print(*self.write(options.docs), sep="\n")
            return
        if options.step == "collect":
            try:
                found = self.collect(options)
            except NotFinishedError:
                found = None
            if found is None:
                print("not finished yet; give the same command again to go on")
                sys.exit(3)
            given = anywhere(sys.argv[1:] if arguments is None else arguments)
            write_data(self.name, " ".join([f"python docs/reports/{self.script}", *given]), found, options.docs)
        path = data_path(self.name, options.docs)
        if self.digest:
            write_rows(path, self.digested(read_data(self.name, options.docs)))
        print(path)

    def digested(self, data: Data) -> dict[str, Any]:
        """The data with their statistics, made anew."""
        figures, digest = data["figures"], self.digest
        if digest and self.of_models:
            return {**data, "digest": {"models": {model: digest(one) for model, one in figures["models"].items()}}}
        return {**data, "digest": digest(figures)} if digest else {**data}

    def write(self, docs: Path) -> list[Path]:
        """The page and its pictures, made from the data."""
        data = read_data(self.name, docs)
        pages, folder = self.page(data, docs), docs / "figures"
        folder.mkdir(parents=True, exist_ok=True)
        pictures = self.pictures(data) if callable(self.pictures) else self.pictures
        for name, draw in pictures.items():
            draw(data, folder / name)
        return [*pages, *(folder / name for name in pictures)]

    def page(self, data: Data, docs: Path) -> list[Path]:
        """The page, made from the data into a folder."""
        if self.write_page:
            return self.write_page(data, docs)
        shown = self.shown or (
            model_by_model if self.of_models else lambda of: {**of["figures"], **of.get("digest", {})}
        )
        told = provenance(self.name, data, self.script, self.timed)
        write_text(path := docs / f"{self.name}.md", rendered(self.name, {**shown(data), "provenance": told}))
        return [path]


def model_by_model(data: Data) -> dict[str, Any]:
    """Of data that `beside` put together: "models", by name the figures with their statistics."""
    digests = data["digest"]["models"]
    return {"models": {model: {**found, **digests[model]} for model, found in data["figures"]["models"].items()}}
