"""Serves clients: carries out their commands, lets them wait, and answers them when there is something for them.

What it guarantees: a command that can be answered is answered in the turn in which it arrived; one that cannot waits,
and is decided again when an event has woken one of its keys, in the order in which its clients came. Nobody waits
while there is something for them, and nobody is answered twice.

Why so: a command that waits holds nothing of the state, only its own words. So waking is to decide again, and
may come too often without harm, but never too seldom. A crowd is woken over several turns (`WAKES_MAX`), so that a
million messages for one queue do not stop the others.

What would break it: an event that makes a message ready and wakes no key (`kinds.py` says which do); to give an
answer at once and not through `commit.hold`, which keeps it until what it has seen is durable (ADR 5); to touch a
waiter after `forget`, when its client may be gone or have been answered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from penstock.broker.room import NoRoomError
from penstock.broker.writer.asked import is_over, through, unless_refused
from penstock.broker.writer.commit import GroupCommit, give
from penstock.broker.writer.executor import Executor
from penstock.broker.writer.fetches import Fetches
from penstock.broker.writer.port import COME_AGAIN, Reply
from penstock.broker.writer.scheduler import Deadline, Scheduler
from penstock.broker.writer.waiters import Waiter, Waiters, WaitersByKey, Watch
from penstock.engine.schedules import Planned
from penstock.limits import SCHEDULES_RUN_AT_ONCE, WAKES_MAX
from penstock.model.answers import Answer, Delivery, Done, Receipt, Refused
from penstock.model.commands import Command, Fetch, Publish, PublishInTurn, Pull, Tick
from penstock.model.schedules import RunDue
from penstock.model.values import Key, Stage
from penstock.storage.port import BeingFetchedError

_TICK = Tick()
_RUN_DUE = RunDue()
_DONE = Done()
_SYNC = Stage.SYNC


class Waking:
    def __init__(
        self,
        executor: Executor,
        commit: GroupCommit,
        waiters: Waiters,
        deadline: Deadline,
        calendar: Deadline,
        scheduler: Scheduler,
    ) -> None:
        self._executor = executor
        self.room = executor.room
        self._commit = commit
        self._waiters = waiters
        self._deadline, self._calendar = deadline, calendar
        self._scheduler = scheduler
        self._wake_is_due = False
        self.crowded: dict[Waiter, None] = {}  # Those who wait for room for their answers.
        self.fetches = Fetches(scheduler)
        self.needs_keys: Callable[[Planned], bool] = lambda _: False  # Then somebody gets them, and releases it.
        waiters.receivers.on_due = self._due_again

    def carry_out(self, command: Command, free: int | None = None) -> Answer:
        """Apply what is due by now, then decide and apply a command. `free`: how much room there is for the messages
        in its answer, if a client asks for them."""
        if self._executor.engine.next_deadline <= self._executor.now():
            self.pass_time()
        if free is not None:
            return self._executor.read(command, free)
        if type(command) is PublishInTurn:
            return self._published_in_turn(command)
        return self._executor.decide(command)

    def _published_in_turn(self, command: PublishInTurn) -> Answer:
        answers = []
        for publish in command.publishes:
            answers.append(self._executor.decide(publish))
            if type(answers[-1]) is Refused:
                break
        return cast("Answer", answers)

    def pass_time(self) -> None:
        """Apply what is due: leases and lifetimes that have ended, and delays that are over."""
        engine, now = self._executor.engine, self._executor.now()
        if events := engine.decide(_TICK, now).events:
            self._executor.apply(events)
        for number in engine.advance(now):
            self._waiters.wake_queue(engine.queues[number].name)
        self.wake()
        self._deadline.set(engine.next_deadline)

    def run_schedules(self) -> None:
        """Each is a decision of its own. Those that are left are due at once, when others have had their turn."""
        executor = self._executor
        schedules = executor.engine.schedules
        for _ in range(SCHEDULES_RUN_AT_ONCE):
            planned = schedules.first_due(executor.wall())
            if planned is None:
                break
            if self.needs_keys(planned):
                schedules.hold()
            else:
                executor.decide(_RUN_DUE)
        self.wake()
        self._calendar.set(schedules.next_due)

    # ── Clients that wait ───────────────────────────────────────────────────────────────────────────────────

    def answer_or_wait(self, command: Command, reply: Reply, stage: Stage, waiter: Waiter | None) -> None:
        try:
            answer = self.carry_out(command, self.room_for(waiter, long=waiter.long) if waiter else None)
        except NoRoomError:
            self._wait_for_room(cast("Waiter", waiter))
            return
        except BeingFetchedError as error:
            self.fetches.add(error.fetch, reply, lambda: self._answer_later(command, reply, stage, waiter))
            return
        if waiter and waiter.patient and not answer:
            self._wait(waiter, answer)
        else:
            self._commit.hold(reply, answer, stage)
        if type(command) is Pull:
            self._wake_passed(command)

    def room_for(self, waiter: Waiter, *, long: int = 0) -> int | None:
        """How large the answer may be; None for a service, which counts itself what it has. `long`: it takes long,
        so it has to be its turn. Whoever waits for a message need not wait for that too: there are few."""
        if not waiter.needs_room:
            return None
        return 0 if waiter.is_turned_away else self.room.free(waiter.holder, long=long)

    def _wait_for_room(self, waiter: Waiter) -> None:
        if waiter.is_turned_away:
            waiter.reply(COME_AGAIN)
            return
        self.crowded[waiter] = None
        self.room.wait(waiter.holder, waiter)

    def has_room(self, waiter: Waiter) -> None:
        if waiter in self.crowded:  # Else it has gone away.
            del self.crowded[waiter]
            self._answer_later(waiter.command, waiter.reply, waiter.stage, waiter)

    def take_crowded(self) -> list[Reply]:
        """Those who wait for room. They are not called again."""
        crowded, self.crowded = self.crowded, {}
        return [waiter.reply for waiter in crowded]

    def _answer_later(self, command: Command, reply: Reply, stage: Stage, waiter: Waiter | None) -> None:
        if not (waiter and waiter.canceled) and not is_over(reply):
            self.answer_or_wait(command, reply, stage, waiter)
            self.wake()

    def _offer(self, waiter: Waiter) -> Answer:
        """Decide the command of a client that waits. If its answer must be fetched, or there is no room for it, the
        client waits for that."""
        free = self.room_for(waiter)
        try:
            return (
                self._executor.decide(waiter.command) if free is None else self._executor.read(waiter.command, free)
            )
        except NoRoomError:
            self.forget(waiter)
            self._wait_for_room(waiter)
            return ()
        except BeingFetchedError as error:
            self.forget(waiter)
            entry = waiter.command, waiter.reply, waiter.stage, waiter
            self.fetches.add(error.fetch, waiter.reply, lambda: self._answer_later(*entry))
            return ()

    def _wait(self, waiter: Waiter, answer: Answer) -> None:
        if type(waiter.command) is Pull:
            if waiter.command.results:  # They are stored.
                waiter.reply = through(waiter.reply, unless_refused(waiter.reply))
            waiter.command = self._executor.engine.waiting(waiter.command)
        self._waiters.count += 1
        waiter.decided_at = 0.0  # It was not its turn when it is woken.
        now = self._executor.now()
        waiter.until = waiter.until or now + waiter.command.wait_ns
        waiter.timer = self._scheduler.after(max(0, waiter.until - now), lambda: self.give_up(waiter))
        self._waiters.of_command[type(waiter.command)].add(waiter, answer)

    def give_up(self, waiter: Waiter) -> None:
        """Answer a client that waits with what there is."""
        if waiter.timer:
            # A fetch that found nothing has an empty answer; the other commands have more to say.
            answer = () if type(waiter.command) is Fetch else self._offer(waiter)
            if waiter.is_waiting:
                self._serve(waiter, answer)
            waiter.patient = False  # Also if its answer has to wait for something else.
            self.wake()

    def forget(self, waiter: Waiter) -> None:
        """Remove a client that waits."""
        self.crowded.pop(waiter, None)
        if waiter.timer:
            waiter.timer.cancel()
            waiter.timer = None
            self._waiters.count -= 1
            self._waiters.of_command[type(waiter.command)].remove(waiter)

    def _serve(self, waiter: Waiter, answer: Answer) -> None:
        self.forget(waiter)
        self._commit.hold(waiter.reply, answer, waiter.stage)
        if type(waiter.command) is Pull:
            self._wake_passed(waiter.command)

    def _wake_passed(self, command: Pull) -> None:
        """With a start, a receiver may have passed the message that others of its name stop before."""
        for draw in command.draws:
            if draw.start:
                self._waiters.receivers.wake_receiver(draw.queue, command.receiver)

    def hand_over(self, command: Publish, reply: Reply) -> bool:
        """Give a message directly to a waiting client that does not confirm it. The message is not stored."""
        waiter = next(iter(self._waiters.workers.by_key.get(command.queue, ())), None)
        if waiter is None or type(waiter.command) is not Fetch:
            return False
        if waiter.command.confirm or len(command.messages) != 1:
            return False
        (message,) = command.messages
        number = self._executor.engine.numbers.get(command.queue)
        if message.delay_ns or number is None or self.room_for(waiter) == 0:
            return False
        self.forget(waiter)
        now = self._executor.now()
        sizes = len(message.body), len(message.key), len(message.headers)
        names = message.content_type, message.sender
        parts = message.body, message.key, message.headers
        delivery = Delivery(number, 0, 0, *sizes, *names, message.priority, 1, now, now, *parts)
        give([(waiter.reply, [delivery]), (reply, [Receipt(number, 0, True)])])
        return True

    def watch(self, queue: str, wake: Callable[[], None]) -> Watch:
        workers = self._waiters.workers
        watch = Watch(workers, queue, wake)
        if self._has_ready(queue) and not self._commit.failure:
            self._commit.hold(watch.woken, _DONE, _SYNC)
        else:
            workers.add_watch(watch)
        return watch

    def _has_ready(self, queue: str) -> bool:
        found = self._executor.engine.queue(queue)
        return found is not None and found.ready > 0

    # ── Waking ──────────────────────────────────────────────────────────────────────────────────────────────

    def wake(self) -> None:
        """Serve the clients whose keys were woken, and then those who watch a queue, if messages are left in it. A
        crowd is served over several turns, so that it delays nobody else."""
        woken, room = self._waiters.woken, WAKES_MAX
        while woken and not self._wake_is_due:
            waiters, key = woken.pop()
            if not waiters.in_turn:
                self._offer_to_all(waiters, key)
                continue
            while waiting := waiters.by_key.get(key):
                if not room:
                    woken.append((waiters, key))
                    self._wake_is_due = True
                    self._scheduler.soon(self._wake_more)
                    return
                room -= 1
                waiter = next(iter(waiting))
                answer = self._offer(waiter)
                if answer:
                    self._serve(waiter, answer)
                elif waiter.is_waiting:
                    waiters.unserved(waiter, answer)
                    break
            if waiters is self._waiters.workers:
                self._wake_watches(cast("str", key))

    def _wake_more(self) -> None:
        self._wake_is_due = False
        if not self._commit.failure:
            self.wake()

    def _wake_watches(self, queue: str) -> None:
        watches = self._waiters.workers.watches
        if queue in watches and self._has_ready(queue):
            for watch in watches.pop(queue):
                self._commit.hold(watch.woken, _DONE, _SYNC)

    def _offer_to_all(self, waiters: WaitersByKey, key: Key) -> None:
        """For clients that wait with one key, but do not all want the same."""
        for waiter in list(waiters.by_key.get(key, ())):
            if not waiter.is_waiting:
                continue  # It went away when another was answered.
            if answer := self._offer(waiter):
                self._serve(waiter, answer)
            elif waiter.is_waiting:
                waiters.unserved(waiter, answer)

    def _due_again(self, key: Key) -> None:
        if not self._commit.failure:
            self._offer_to_all(self._waiters.receivers, key)
            self.wake()
