"""For Penstock: `python -m bench.noop.penstock_tasks JOBS`."""

import sys

from penstock import App

app = App(name="noop")
SENT_TOGETHER = 1000


@app.task
def noop() -> None:
    pass


@app.task(queue="noop-async")
async def noop_async() -> None:
    pass


if __name__ == "__main__":
    task = noop_async if sys.argv[2:] == ["async"] else noop
    for _ in range(int(sys.argv[1]) // SENT_TOGETHER):
        task.send_many([()] * SENT_TOGETHER)
    app.close()
