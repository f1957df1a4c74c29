"""What tasks say about their queue becomes its settings."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import App
from penstock.limits import INT32_MAX
from penstock.renamed import DeprecatedName
from penstock.worker.errors import TaskError
from penstock.worker.policy import Policies, Policy, PolicyOptions


def test_attempts_count_with_the_first_one_as_the_queue_counts_them() -> None:
    assert Policy(max_attempts=6).settings("mail")["max_attempts"] == 6
    assert Policy(max_attempts=None).settings("mail")["max_attempts"] is None


def test_the_old_names_of_the_options_of_a_task_say_the_same() -> None:
    app = App()
    old: dict[str, Any] = {"retries": 5, "backoff": "linear", "delay": 2, "delay_max": 60, "jitter": 0.5}
    with pytest.warns(DeprecatedName) as warned:
        app.task(queue="old", **old)(lambda: None)
    app.task(name="forever", queue="forever", max_attempts=None)(lambda: None)
    assert app.broker.policies.of("old") == Policy(6, "linear", 2, 60, 0.5)
    assert app.broker.policies.of("forever").max_attempts is None
    assert (len(warned), {each.filename for each in warned}) == (5, {__file__})
    with pytest.warns(DeprecatedName, match="use idempotency_key"):
        assert app.tasks["<lambda>"].with_options(key="k").idempotency_key == "k"  # type: ignore[call-arg]


def test_a_dead_letter_queue_gets_jobs_after_the_last_attempt() -> None:
    policy = Policy(max_attempts=3, dead_letter_queue="failed")
    assert policy.settings("mail")["redrive_policy"] == {"max_receives": 3, "dead_letter_queue": "failed"}


def test_without_a_word_jobs_that_have_failed_go_to_a_queue_of_their_own() -> None:
    assert Policy().settings("mail")["redrive_policy"] == {"max_receives": 6, "dead_letter_queue": "mail.failed"}
    endless = Policy(max_attempts=None).settings("mail")["redrive_policy"]
    assert endless == {"max_receives": INT32_MAX, "dead_letter_queue": "mail.failed"}
    assert Policy(dead_letter_queue=None).settings("mail")["redrive_policy"] is None


def test_tasks_that_share_a_queue_share_its_settings() -> None:
    policies = Policies()
    policies.add("mail", "first", {"max_attempts": 2})
    policies.add("mail", "second", {"lease": 60})
    policies.add("mail", "third", {"max_attempts": 2})
    assert policies.of("mail") == Policy(max_attempts=2, lease=60)
    with pytest.raises(
        TaskError, match=r"first and fourth share the queue mail, but their max_attempts differs \(2, 3\)"
    ):
        policies.add("mail", "fourth", {"max_attempts": 3})


@pytest.mark.parametrize("options", [{"lease": 0.5}, {"max_attempts": 0}])
def test_a_setting_that_cannot_work_is_refused(options: PolicyOptions) -> None:
    with pytest.raises(TaskError):
        Policies().add("mail", "first", options)
