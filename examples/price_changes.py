"""Change data capture from a source that only knows how to send everything: python examples/price_changes.py FILE.csv

Each line of the file is sku,price. Run it again and again over the newest export: consumers of the channel
"price-changes" get the lines that differ from the last time, and nothing else.
"""

import csv
import sys
from collections.abc import Iterable
from pathlib import Path

from penstock import Client

TOPIC, CHANNEL = "prices.export", "price-changes"


def export(client: Client, rows: Iterable[tuple[str, str]]) -> tuple[int, int]:
    """Publish every row. Returns how many were changed and unchanged."""
    sent = [client.publish_to(TOPIC, {"price": price}, key=sku) for sku, price in rows]
    unchanged = sum(each.unchanged for each in sent)
    return len(sent) - unchanged, unchanged


def changes(client: Client) -> dict[str, str]:
    """What has changed since the last call."""
    return {message.key: message.json()["price"] for message in client.consume(CHANNEL, idle=1)}


if __name__ == "__main__":
    with Client() as client, Path(sys.argv[1]).open(newline="") as file:
        client.channels.create(CHANNEL, ["prices.*"])
        print("{} changed, {} unchanged".format(*export(client, csv.reader(file))))
        for sku, price in changes(client).items():
            print(sku, price)
