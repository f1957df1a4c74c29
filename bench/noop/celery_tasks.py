"""For Celery: `python -m bench.noop.celery_tasks JOBS`."""

import os
import sys

from celery import Celery  # type: ignore[import-untyped]

app = Celery("noop", broker=os.environ.get("BENCH_REDIS", ""))
# As safe as Penstock: a job is acknowledged when it is done. As fast as it gets: no results, and many fetched ahead.
app.conf.update(task_acks_late=True, task_ignore_result=True, worker_prefetch_multiplier=250)


@app.task(name="noop")  # type: ignore[untyped-decorator]
def noop() -> None:
    pass


if __name__ == "__main__":
    with app.producer_or_acquire() as producer:
        for _ in range(int(sys.argv[1])):
            noop.apply_async(producer=producer)
