"""`penstock demo --brief`: see a broker at work for two seconds, told step by step."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.child_broker import running
from penstock.cli.tail import line

if TYPE_CHECKING:
    from penstock.client import Client

_NEXT = """
The demo is over; its broker and its data are gone. Start one that stays, in another terminal:

  penstock serve                                   # a broker on 127.0.0.1:7843, data in ./data
  penstock queues create jobs
  seq 1000 | penstock publish jobs --lines         # every line is a message
  penstock consume jobs --follow --exec 'cat'      # exit status 0 confirms, others give back
  penstock top                                     # watch the queues
  penstock --help                                  # all verbs
"""


def tell() -> None:
    """Start a broker in a temporary directory, send and take messages, and show what happened to them."""
    from penstock.client import Client

    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as directory, running(Path(directory) / "data") as url:
        _say(f"A broker listens at {url}, {time.monotonic() - began:.1f} s after its start.")
        with Client(url) as client:
            _play(client)
    print(_NEXT)


def _play(client: Client) -> None:
    _say("A queue for parcels. What fails twice goes to another queue:", "penstock queues create parcels …")
    client.queues.create("parcels-lost")
    policy = {"max_receives": 2, "dead_letter_queue": "parcels-lost"}
    client.queues.create("parcels", redrive_policy=policy)  # type: ignore[arg-type]
    _say("Three messages, each on disk before its id is printed:", "penstock publish parcels 'to Oslo'")
    for town in ("Oslo", "Lima", "nowhere"):
        print(f"  {client.publish('parcels', f'to {town}').id}  to {town}")
    _say("A worker takes them. It confirms what it can deliver:", "penstock consume parcels --all")
    for _ in range(2):
        for message in client.receive("parcels", 10, wait=0, consumer="worker"):
            delivered = message.text != "to nowhere"
            message.confirm() if delivered else message.retry(delay=0)
            print(f"  {message.text}: {'done' if delivered else 'given back'}")
    _say("Everything that happened is in the Event Log:", "penstock tail --from earliest")
    for event in client.events(follow=False):
        output.styled(("  ", ""), *line(event))
    _say("The parcel to nowhere waits for somebody to look at it:", "penstock peek parcels-lost")
    for found in client.search(queue="parcels-lost"):
        print(f"  {found.id}  {found.body.decode()}")


def _say(sentence: str, command: str = "") -> None:
    print()
    output.styled((sentence, "bold"))
    if command:
        output.styled((f"  $ {command}", "cyan"))
