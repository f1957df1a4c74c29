"""A question and its answer through a queue: python examples/rpc.py serve | ask NUMBER

Any number of servers share the questions. A server that dies in the middle of one costs time, not the answer.
"""

import sys

from penstock import Client
from penstock.client.errors import MessageFailed

QUEUE = "rpc-factors"


def factors(number: int) -> list[int]:
    found, divisor = [], 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return [*found, number] if number > 1 else found


def serve(client: Client, idle: float | None = None) -> None:
    for question in client.consume(QUEUE, idle=idle):
        if not question.text.isdigit():
            question.invalid()
            continue
        question.confirm(factors(int(question.text)))  # The answer is stored with the event that ends the message.


def ask(client: Client, number: str, timeout: float = 10) -> list[int]:
    return client.publish(QUEUE, number, expires=timeout).result(timeout=timeout).json()


if __name__ == "__main__":
    with Client() as client:
        client.queues.create(QUEUE, lease=60)
        if sys.argv[1] == "serve":
            serve(client)
        else:
            try:
                print(*ask(client, sys.argv[2]))
            except MessageFailed as error:
                sys.exit(f"no answer: {error}")
