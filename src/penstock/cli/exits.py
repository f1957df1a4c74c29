"""Exit codes that scripts can trust, and what is printed with them. docs/cli.md has the same table."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from penstock.cli.extras import how_to_install
from penstock.errors import ConfigError, InUseError, PenstockError
from penstock.renamed import DeprecatedName


class Exit(IntEnum):
    """How a verb ended."""

    OK = 0
    FAILED = 1
    USAGE = 2
    IN_USE = 3
    NOT_FOUND = 4
    REFUSED = 5
    UNREACHABLE = 6
    TIMED_OUT = 7
    INTERRUPTED = 130  # Ctrl-C
    BROKEN_PIPE = 141  # The program that reads our output has ended.


_BY_STATUS = {
    400: Exit.USAGE,
    401: Exit.REFUSED,
    403: Exit.REFUSED,
    404: Exit.NOT_FOUND,
    409: Exit.REFUSED,
    410: Exit.NOT_FOUND,
    413: Exit.REFUSED,
}


_REMEDIES = {  # In place of those of the Python client.
    "no_queue": "create it with `penstock queues create NAME`, or see `penstock queues list`",
    "no_channel": "create it with `penstock channels create NAME --topic TOPIC`, or see `penstock channels list`",
    "queue_exists": "change it with `penstock queues change`",
    "unauthorized": "give it with --token, PENSTOCK_TOKEN or a profile",
}
_REQUEST = re.compile(r" \((?:GET|PUT|POST|PATCH|DELETE) .*", re.DOTALL)


class CommandError(PenstockError):
    """What the user asked for did not happen. The sentence says why, and what to do."""

    def __init__(self, sentence: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(sentence)
        self.exit = code


def run(app: Callable[[], object]) -> None:
    """Run the command line, and end the process with the right code."""
    _print_old_names()
    try:
        app()
    except PenstockError as error:
        sys.exit(_complain(sentence_of(error), code_of(error)))
    except ImportError as error:
        if not (advice := how_to_install(error)):
            raise
        sys.exit(_complain(advice, Exit.FAILED))


def _print_old_names() -> None:
    """What is typed under an old name is one line on standard error."""
    show = warnings.showwarning

    def shown(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, DeprecatedName):
            print(f"penstock: {message}", file=sys.stderr)
        else:
            show(message, category, *place, **more)

    warnings.showwarning = shown
    warnings.simplefilter("once", DeprecatedName)


def code_of(error: PenstockError) -> Exit:
    """The exit code for an error of ours."""
    if isinstance(error, CommandError):
        return error.exit
    if isinstance(error, ConfigError):
        return Exit.USAGE
    if isinstance(error, InUseError) or getattr(error, "code", "") == "queue_exists":
        return Exit.IN_USE
    if isinstance(error, TimeoutError):
        return Exit.TIMED_OUT
    return exit_of_status(getattr(error, "status", None))


def sentence_of(error: PenstockError) -> str:
    """What went wrong, and what to type now. Of a wrong value nobody needs to know in which request it was."""
    remedy = _REMEDIES.get(getattr(error, "code", ""))
    if remedy:
        return f"{_REQUEST.sub('', str(error))}; {remedy}"
    return _REQUEST.sub("", str(error)) if getattr(error, "status", None) == 400 else str(error)


def exit_of_status(status: int | None) -> Exit:
    """`None`: it is not an error of the client. 0: the broker did not answer."""
    if status is None:
        return Exit.FAILED
    return Exit.UNREACHABLE if status == 0 else _BY_STATUS.get(status, Exit.FAILED)


def end_broken_pipe() -> int:
    """Make the flush at the end of the process harmless, after the reader of our output has ended."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.BROKEN_PIPE


def _complain(sentence: str, code: Exit) -> int:
    print(f"penstock: {sentence}", file=sys.stderr)
    return code
