"""Send each order to every partner that subscribed, over HTTP: python examples/webhooks.py

The broker posts, retries, and pauses for a partner that is down; the others are not held up. A partner
on this machine needs a broker started with: penstock serve --set push.private_addresses=allow
"""

import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from penstock import Client


class Partner(BaseHTTPRequestHandler):
    """What a partner has to do: answer 2xx when it has the message. Other answers bring it again."""

    got: queue.Queue[tuple[str, bytes]] = queue.Queue()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.put((self.headers["X-Penstock-Channel"], body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def subscribe(client: Client, name: str, url: str) -> None:
    client.channels.create(f"hook-{name}", ["hook-orders.*"], max_attempts=9, push={"url": url, "max_in_flight": 4})


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Partner)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with Client() as client:
        for name in ("billing", "warehouse"):
            subscribe(client, name, f"http://127.0.0.1:{server.server_port}/{name}")
        sent = client.publish_to("hook-orders.paid", {"order": 17})
        print("copies for", *sent.channels)
        for _ in sent.channels:
            print(*Partner.got.get(timeout=10))
