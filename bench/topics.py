"""What a message for many channels costs: deliveries queued per second, and publishes that match no channel.

Messages are published a hundred a request, and one a request. Each is on disk before it is acknowledged, and its body
is stored once.
"""

import json
from pathlib import Path

from rich.progress import Progress

from bench.cores import on_load_core
from bench.driver import Count, closed_loop
from bench.load import BODY, Publish, request
from bench.penstock import Broker, ask, broker

CHANNELS = 100
MESSAGES = 100  # In one request.
CONNECTIONS, CONNECTIONS_ALONE = 4, 64
WARM_SECONDS, SECONDS = 1.0, 5.0
JSON = {"Content-Type": "application/json"}


def publish(topic: str, messages: int) -> bytes:
    document = b'{"topics":["%b"],"message":"%b"}' % (topic.encode(), BODY)
    body = document if messages == 1 else b"[" + b",".join([document] * messages) + b"]"
    return request("POST", "/v1/publish", body, JSON)


def publish_rate(port: int, topic: str, connections: int, messages: int) -> Count:
    conversations = [Publish(publish(topic, messages), messages) for _ in range(connections)]
    return closed_loop(port, conversations, warm_seconds=WARM_SECONDS, seconds=SECONDS)


def topics(progress: Progress, scratch: Path, channels: int) -> dict[str, float]:
    task = progress.add_task("topics", total=4)
    found: dict[str, float] = {"channels": channels}
    with broker(scratch) as penstock:
        for number in range(channels):
            document = json.dumps({"topics": ["wanted.*"], "retention_timeout": 3600}).encode()
            status, answer = ask(penstock.port, "PUT", f"/v1/channels/channel-{number}", document)
            assert status == 201, answer
        for name, topic in (("plain", "unwanted.x"), ("wanted", "wanted.x")):
            places = channels + 1 if name == "wanted" else 1
            for way, connections, messages in (("batch", CONNECTIONS, MESSAGES), ("alone", CONNECTIONS_ALONE, 1)):
                progress.update(task, description=f"{name}, {way}")
                before = log_bytes(penstock)
                count = on_load_core(publish_rate, penstock.port, topic, connections, messages)
                assert not count.errors, count.complaint
                found[f"{name}_{way}_messages_per_second"] = count.per_second
                found[f"{name}_{way}_deliveries_per_second"] = count.per_second * places
                found[f"{name}_{way}_log_bytes_per_delivery"] = (
                    (log_bytes(penstock) - before) / count.with_warm_up / places
                )
                progress.advance(task)
    for way in ("batch", "alone"):
        plain, wanted = found[f"plain_{way}_messages_per_second"], found[f"wanted_{way}_deliveries_per_second"]
        found[f"{way}_deliveries_to_plain_messages"] = wanted / plain
    return found


def log_bytes(penstock: Broker) -> int:
    """The size of the log."""
    status, answer = ask(penstock.port, "GET", "/v1/log")
    assert status == 200, answer
    return int(json.loads(answer)["bytes"])
