"""Every block of the documentation that can be pasted works, in whatever order the pages are read."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tests.support.audit_records import AUDIT
from tests.support.broker import StartBroker
from tests.support.documentation import PAGES, ROOT, Reader, blocks_of, plain_blocks_of
from tests.support.effort import LONG

COMMAND = re.compile(r"^(curl|docker|kubectl|make|penstock|pip|python) ", re.MULTILINE)
# Each takes half a minute of processor time.
ORDERS = ("as listed", "backwards", "shuffled") if LONG else ("shuffled",)
MARKS = ("not run, ", "answers ", "background", "spark")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.timeout(1200)
def test_the_blocks_of_all_pages_work_on_one_broker_in_any_order(
    order: str, start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker(AUDIT, "push.private_addresses=allow", data=tmp_path / "data")
    pages = {"as listed": PAGES, "backwards": PAGES[::-1], "shuffled": random.Random(7).sample(PAGES, len(PAGES))}
    for page in pages[order]:
        with Reader(broker, tmp_path) as reader:
            for block in blocks_of(page):
                if block.runs:
                    reader.paste(block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_block_that_is_special_says_so_in_words_that_are_known(page: Path) -> None:
    for block in blocks_of(page):
        assert not block.mark or block.mark.startswith(MARKS), f"{page.name}:{block.line}: {block.mark}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_in_blocks_that_are_run_or_say_why_not(page: Path) -> None:
    for block in plain_blocks_of(page):
        assert not COMMAND.search(block), f"{page.name}: mark it as sh, or as text:\n{block}"


def test_a_block_that_fails_is_noticed(start_broker: StartBroker, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\ncurl localhost:7843/queues/missing\n```\n")
    with Reader(start_broker(), tmp_path) as reader, pytest.raises(AssertionError, match="status 404"):
        reader.paste(blocks_of(page)[0])
