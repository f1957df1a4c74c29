"""`penstock completion`: make a shell complete verbs and options."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Shell(StrEnum):
    """Shells that can be completed."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell.")]) -> None:
    """Print the completion script of a shell. For bash: penstock completion bash >> ~/.bashrc"""
    from typer._completion_shared import get_completion_script

    print(get_completion_script(prog_name="penstock", complete_var="_PENSTOCK_COMPLETE", shell=shell.value))
