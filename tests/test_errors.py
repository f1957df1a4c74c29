"""The table of error codes: codes are stable, sentences read well, and the documentation shows all of them."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.errors import Fault, Reason, table

ALL = (*Reason, *Fault)
DOCUMENT = Path(__file__).parents[1] / "docs" / "errors.md"


def test_every_code_is_snake_case_and_stands_once() -> None:
    codes = [error.code for error in ALL]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch("[a-z]+(_[a-z]+)*", code) for code in codes)


def test_a_sentence_with_details_says_them_and_one_without_has_no_gap() -> None:
    assert Reason.NO_QUEUE.explain("jobs") == "the queue does not exist: jobs"
    assert Reason.NO_QUEUE.explain() == "the queue does not exist"
    assert Reason.TOO_MANY_QUEUES.explain("100000") == "queue limit reached (100000); delete a queue first"
    assert Reason.TOO_MANY_QUEUES.explain() == "queue limit reached; delete a queue first"
    assert not [error for error in ALL if "{" in error.sentence]


def test_a_detail_is_no_template() -> None:
    assert Reason.NO_QUEUE.explain("{}{0}%s") == "the queue does not exist: {}{0}%s"


def test_the_documentation_shows_the_table() -> None:
    shown = DOCUMENT.read_text().split("<!-- errors -->")[1].split("<!-- /errors -->")[0]
    assert shown.strip() == table(), "copy what penstock.errors.table() returns into docs/errors.md"
