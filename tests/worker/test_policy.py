"""What tasks say about their queue becomes its settings."""

from __future__ import annotations

import pytest

from penstock.worker.errors import TaskError
from penstock.worker.policy import Policies, Policy, PolicyOptions


def test_retries_count_after_the_first_attempt() -> None:
    assert Policy(retries=5).settings()["retries"] == 6
    assert Policy(retries=0).settings()["retries"] == 1
    assert Policy(retries=None).settings()["retries"] == 0


def test_a_dead_letter_queue_gets_jobs_after_the_last_attempt() -> None:
    policy = Policy(retries=2, dead_letter_queue="failed")
    assert policy.settings()["redrive_policy"] == {"max_receives": 3, "dead_letter_queue": "failed"}


def test_tasks_that_share_a_queue_share_its_settings() -> None:
    policies = Policies()
    policies.add("mail", "first", {"retries": 2})
    policies.add("mail", "second", {"lease": 60})
    policies.add("mail", "third", {"retries": 2})
    assert policies.of("mail") == Policy(retries=2, lease=60)
    with pytest.raises(TaskError, match=r"first and fourth share the queue mail, but their retries differs \(2, 3\)"):
        policies.add("mail", "fourth", {"retries": 3})


@pytest.mark.parametrize("options", [{"lease": 0.5}, {"retries": -1}])
def test_a_setting_that_cannot_work_is_refused(options: PolicyOptions) -> None:
    with pytest.raises(TaskError):
        Policies().add("mail", "first", options)
