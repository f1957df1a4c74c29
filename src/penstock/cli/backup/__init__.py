"""`penstock backup`: copy everything that a broker has stored, while it serves, or from its files."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import output
from penstock.cli.exits import CommandError, Exit
from penstock.cli.session import Session, verb
from penstock.cli.shards import directories, shards_in

if TYPE_CHECKING:
    from penstock.storage.backup.making import Made
    from penstock.storage.backup.manifest import Contents, Manifest
    from penstock.storage.backup.source import StoreSource


@verb
def backup(
    session: Session,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the backup is, or will be.")],
    data: Annotated[
        Path | None, typer.Option("--data", help="The data directory of a broker that does not run.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Make no backup: check every byte of this one.")] = False,
) -> None:
    """Back up a broker while it serves. A directory that holds a backup is brought up to date: only what is new is
    copied."""
    if verify and data:
        raise CommandError("--verify checks a backup and --data makes one; give one of them", Exit.USAGE)
    if verify:
        _verify(session, directory)
    elif data:
        _back_up_files(session, directory, data)
    else:
        from penstock.cli.backup.broker_source import BrokerStore
        from penstock.cli.certificates import trust_of

        session.check_reachable()
        trust = trust_of(session.target)
        with BrokerStore(session.target.url.text, session.target.token.text, trust) as source:
            _back_up(session, directory, source)


def _back_up_files(session: Session, directory: Path, data: Path) -> None:
    """All shards are taken first, so that no broker changes one while another is copied."""
    from penstock.storage.backup.source import DirectorySource, StoreSource
    from penstock.storage.directory import DataDirectory

    stored = shards_in(data)
    with ExitStack() as taken:
        found = directories(data) if stored else [DataDirectory(data)]
        sources = []
        for each in found:
            each.read_identity()
            identity = each.open()
            taken.callback(each.close)
            sources.append(DirectorySource(each, identity, time.time_ns()))
        _back_up(session, directory, StoreSource(sources, stored))


def _back_up(session: Session, directory: Path, source: StoreSource) -> None:
    from penstock.storage.backup.making import make_backup

    with output.counting("copying") as progress:
        made = make_backup(directory, source, progress)
    if session.as_json:
        output.emit(facts_of_all(directory, made.contents) | _counts(made))
        return
    for sentence in _sentences(directory, made.contents):
        print(sentence)
    copied, reused = (f"{size / (1 << 20):,.1f} MiB" for size in _counts(made).values())
    print(f"{copied} copied, {reused} were there.")


def _counts(made: Made) -> dict[str, int]:
    return {"copied_bytes": made.copied_bytes, "reused_bytes": made.reused_bytes}


def _sentences(directory: Path, contents: Contents) -> Iterator[str]:
    for folder, manifest in zip(contents.folders(directory), contents.shards, strict=True):
        state = manifest.state
        yield f"{folder} holds everything before offset {state.offset:,} ({moment(state.time)})."


def _verify(session: Session, directory: Path) -> None:
    """Check a backup, and print what is wrong with it."""
    from penstock.storage.backup.manifest import contents_of
    from penstock.storage.backup.restoring import verify_backup

    contents = contents_of(directory)
    with output.counting("checking") as progress:
        progress.expect(contents.bytes)
        problems = verify_backup(directory, progress.advance)
    if session.as_json:
        output.emit(facts_of_all(directory, contents) | {"problems": problems})
    else:
        for line in problems or map(_whole, contents.shards):
            print(line)
    if problems:
        raise CommandError(f"{directory} is damaged: make a new backup in another directory, or use another copy")


def _whole(manifest: Manifest) -> str:
    state = manifest.state
    return f"whole: {len(manifest.files)} files, everything before offset {state.offset:,} ({moment(state.time)})"


def facts_of_all(directory: Path, contents: Contents) -> dict[str, object]:
    """A backup, for programs: of one shard, or of several."""
    if contents.store is None:
        return facts(directory, contents.shards[0])
    folders = contents.folders(directory)
    shards = [facts(folder, shard) for folder, shard in zip(folders, contents.shards, strict=True)]
    return {"directory": str(directory), "shards": shards}


def facts(directory: Path, manifest: Manifest) -> dict[str, object]:
    """The backup of a shard, for programs."""
    state = manifest.state
    return {
        "directory": str(directory),
        "log": state.log,
        "offset": state.offset,
        "time": moment(state.time),
        "files": len(manifest.files),
        "bytes": manifest.bytes,
    }


def moment(nanos: int) -> str:
    from penstock.model.times import rfc3339

    return rfc3339(nanos).decode()
