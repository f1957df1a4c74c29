"""beanstalkd with `-f0`, an fsync for every write: put; then reserve and delete."""

from pathlib import Path

from bench.cores import on_load_core
from bench.driver import Count, closed_loop
from bench.load import BODY, Tally
from bench.servers import accepts, free_port, running, scratch_directory
from bench.targets import IN_FLIGHT, Figures, Plan, Target, check_supply, program

RUN_SECONDS_MAX = 600  # A reserved job is released after this time, which is longer than any run.


class Put(Tally):
    """One put in flight."""

    def __init__(self) -> None:
        super().__init__()
        self.request = b"put 0 0 %d %d\r\n%s\r\n" % (RUN_SECONDS_MAX, len(BODY), BODY)

    def open(self) -> bytes:
        return self.request

    def receive(self, data: bytes) -> bytes:
        if data[-1:] != b"\n":
            return b""  # The end of a line that was split; nothing in it is needed.
        if data.startswith(b"INSERTED"):
            self.finished += 1
        else:
            self.wrong(data)
        return self.request


class ReserveAndDelete(Tally):
    """Reserves a job, deletes it, and repeats. Both together count as one operation."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = b""

    def open(self) -> bytes:
        return b"reserve\r\n"

    def receive(self, data: bytes) -> bytes:
        data = self.kept + data
        head, newline, rest = data.partition(b"\r\n")
        if not newline or (head.startswith(b"RESERVED") and len(rest) < len(BODY) + 2):
            self.kept = data
            return b""
        self.kept = b""
        if head.startswith(b"RESERVED"):
            return b"delete %s\r\n" % head.split()[1]
        if head == b"DELETED":
            self.finished += 1
        else:
            self.wrong(data)
        return b"reserve\r\n"


def put_rate(port: int, warm_seconds: float, seconds: float) -> Count:
    conversations = [Put() for _ in range(IN_FLIGHT)]
    return closed_loop(port, conversations, warm_seconds=warm_seconds, seconds=seconds)


def reserve_rate(port: int, warm_seconds: float, seconds: float) -> Count:
    conversations = [ReserveAndDelete() for _ in range(IN_FLIGHT)]
    return closed_loop(port, conversations, warm_seconds=warm_seconds, seconds=seconds)


def measure(plan: Plan) -> Figures:
    server, port = find(), free_port()
    assert server is not None
    with scratch_directory(plan.scratch) as directory:
        command = [server, "-l", "127.0.0.1", "-p", str(port), "-b", directory, "-f0"]
        with running(command, directory, lambda: accepts(port)):
            publish = on_load_core(put_rate, port, plan.warm_seconds, plan.seconds)
            # It deletes about as fast as it puts, so put as many again.
            more = on_load_core(put_rate, port, plan.warm_seconds, plan.seconds)
            consume = on_load_core(reserve_rate, port, plan.warm_seconds, plan.seconds)
    check_supply(publish.with_warm_up + more.with_warm_up, consume)
    return Figures(publish, consume)


def find() -> Path | None:
    return program("beanstalkd")


TARGETS = (Target("beanstalkd", "beanstalkd -f0", measure, find, "beanstalkd"),)
