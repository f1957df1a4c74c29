"""For RQ: `python -m bench.noop.rq_tasks JOBS`."""

import os
import sys


def noop() -> None:
    pass


if __name__ == "__main__":
    from redis import Redis
    from rq import Queue

    queue = Queue("noop", connection=Redis.from_url(os.environ["BENCH_REDIS"]))
    sent_together = 100
    for _ in range(int(sys.argv[1]) // sent_together):
        queue.enqueue_many(
            [Queue.prepare_data("bench.noop.rq_tasks.noop", result_ttl=0) for _ in range(sent_together)]
        )
