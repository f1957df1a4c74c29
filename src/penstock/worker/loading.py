"""Finding an app by `module:name`, as it is given on the command line."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from penstock.worker.app import App
from penstock.worker.errors import TaskError


def load(target: str) -> App:
    """The app called `name` in a module that can be imported from here. Without a name, it is `app`."""
    module_name, _, name = target.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise TaskError(f"cannot import {module_name} from {here}; give MODULE:APP, such as shop.tasks:app") from None
    app = getattr(module, name or "app", None)
    if not isinstance(app, App):
        found = [name for name, value in vars(module).items() if isinstance(value, App)]
        remedy = f"use {module_name}:{found[0]}" if found else "make one with app = penstock.App()"
        raise TaskError(f"{module_name} has no app called {name or 'app'}; {remedy}")
    return app
