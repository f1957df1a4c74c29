"""A server that does nothing, to show how fast the load generator itself is.

It answers every read with the same bytes, and neither parses nor stores anything.
"""

import select
import socket
import sys

from bench.driver import HOST, READ_BYTES

ANSWER = b"HTTP/1.1 201 Created\r\nx-mqs-message-id: 0\r\ncontent-length: 0\r\n\r\n"
BACKLOG = 1024


def serve(port: int) -> None:
    listener = socket.create_server((HOST, port), backlog=BACKLOG)
    epoll = select.epoll()
    epoll.register(listener.fileno(), select.EPOLLIN)
    links: dict[int, socket.socket] = {}
    while True:
        for descriptor, _ in epoll.poll():
            if descriptor == listener.fileno():
                link, _ = listener.accept()
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                links[link.fileno()] = link
                epoll.register(link.fileno(), select.EPOLLIN)
            elif _answered(links[descriptor]) is False:
                links.pop(descriptor).close()


def _answered(link: socket.socket) -> bool:
    try:
        return bool(link.recv(READ_BYTES)) and bool(link.send(ANSWER))
    except OSError:
        return False


if __name__ == "__main__":
    serve(int(sys.argv[1]))
