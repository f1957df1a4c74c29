"""Changes that depend on what there is: it is looked at first, and then changed if it is still like that."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from penstock.dialects.wire import http
from penstock.errors import Reason
from penstock.model.answers import CHANGED_MEANWHILE, Answer, Refused
from penstock.model.client import Cancelable, Client
from penstock.model.commands import Command
from penstock.model.values import Stage


class Submit(Protocol):
    def __call__(
        self, client: Client, command: Command, reply: Callable[[Any], None], stage: Stage = Stage.SYNC
    ) -> Cancelable | None: ...


Respond = Callable[[http.Response | http.Stream], None]


class Looking:
    """Looks at something, and changes what is there. If somebody else has changed it in between, it looks again."""

    def __init__(
        self,
        submit: Submit,
        client: Client,
        look: Command,
        act: Callable[[Answer, Looking], None],
        render: Callable[[Answer, int], http.Rendered],
    ) -> None:
        """`act`: gets what is there, and calls `change` or `respond`. `render`: of the answer to a change, and the
        status of the response."""
        self._submit = partial(submit, client)
        self._look_at = look
        self._act = act
        self._render = render
        self.respond: Respond = lambda _: None

    def when_ready(self, respond: Respond) -> None:
        self.respond = respond
        self._look()

    def _look(self) -> None:
        self._submit(self._look_at, lambda found: self._act(found, self), Stage.READY)

    def change(self, command: Command, status: int = 200, *, again: Reason | None = None) -> None:
        """`again`: look again, too, if it is refused for this reason."""

        def answered(answer: Answer) -> None:
            if answer == CHANGED_MEANWHILE or (isinstance(answer, Refused) and answer.reason is again):
                self._look()
            else:
                http.give(self._render(answer, status), self.respond)

        self._submit(command, answered)
