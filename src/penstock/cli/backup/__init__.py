"""`penstock backup`: copy everything that a broker has stored, while it serves, or from its files."""

from __future__ import annotations

import time
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
    from penstock.storage.backup.manifest import Manifest
    from penstock.storage.backup.source import Source


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
        from penstock.cli.backup.broker_source import BrokerSource
        from penstock.cli.certificates import trust_of

        session.check_reachable()
        trust = trust_of(session.target)
        with BrokerSource(session.target.url.text, session.target.token.text, trust) as source:
            _back_up(session, directory, source)


def _back_up_files(session: Session, directory: Path, data: Path) -> None:
    """All shards are taken first, so that no broker changes one while another is copied."""
    from penstock.storage.backup.making import check_kind
    from penstock.storage.backup.source import DirectorySource
    from penstock.storage.directory import DataDirectory
    from penstock.storage.shards import shard_directory, write_shards

    stored = shards_in(data)
    check_kind(directory, has_shards=stored is not None)
    with ExitStack() as taken:
        found = directories(data) if stored else [DataDirectory(data)]
        for each in found:
            each.read_identity()
            each.open()
            taken.callback(each.close)
        for shard, each in enumerate(found):
            assert each.identity is not None
            target = shard_directory(directory, shard).path if stored else directory
            _back_up(session, target, DirectorySource(each, each.identity, time.time_ns()))
        if stored:
            write_shards(directory, stored)


def _back_up(session: Session, directory: Path, source: Source) -> None:
    from penstock.storage.backup.making import make_backup

    with output.counting("copying") as progress:
        made = make_backup(directory, source, progress)
    output.done(session.as_json, facts(directory, made.manifest) | _counts(made), _sentence(directory, made))


def _counts(made: Made) -> dict[str, int]:
    return {"copied_bytes": made.copied_bytes, "reused_bytes": made.reused_bytes}


def _sentence(directory: Path, made: Made) -> str:
    state = made.manifest.state
    copied, reused = (f"{size / (1 << 20):,.1f} MiB" for size in _counts(made).values())
    return (
        f"{directory} holds everything before offset {state.offset:,} ({moment(state.time)}):"
        f" {copied} copied, {reused} were there"
    )


def _verify(session: Session, directory: Path) -> None:
    from penstock.storage.shards import shard_directory

    stored = shards_in(directory)
    found = [shard_directory(directory, shard).path for shard in range(stored.shards)] if stored else [directory]
    whole = [_is_whole(session, each) for each in found]
    if not all(whole):
        raise CommandError(f"{directory} is damaged: make a new backup in another directory, or use another copy")


def _is_whole(session: Session, directory: Path) -> bool:
    """Check one backup, and print what is wrong with it."""
    from penstock.storage.backup.manifest import manifest_of
    from penstock.storage.backup.restoring import verify_backup

    manifest = manifest_of(directory)
    with output.counting("checking") as progress:
        progress.expect(manifest.bytes)
        problems = verify_backup(directory, progress.advance)
    if session.as_json:
        output.emit(facts(directory, manifest) | {"problems": problems})
        return not problems
    for problem in problems:
        print(problem)
    if not problems:
        state = manifest.state
        print(f"whole: {len(manifest.files)} files, everything before offset {state.offset:,} ({moment(state.time)})")
    return not problems


def facts(directory: Path, manifest: Manifest) -> dict[str, object]:
    """A backup, for programs."""
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
    from penstock.dialects.wire.times import rfc3339

    return rfc3339(nanos).decode()
