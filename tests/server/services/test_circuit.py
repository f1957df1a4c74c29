from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.limits import SECOND_NS
from penstock.server.services.circuit import Circuit, backoff_ns

FIRST_NS, LONGEST_NS = SECOND_NS, 60 * SECOND_NS
chances = st.floats(0, 1, exclude_max=True)


@given(st.integers(1, 1 << 31), st.integers(1, 1 << 40), st.integers(1, 1 << 50), chances)
def test_a_wait_is_never_longer_than_the_longest_nor_shorter_than_half_of_what_is_due(
    attempt: int, first_ns: int, longest_ns: int, chance: float
) -> None:
    whole = min(first_ns * 2 ** min(attempt - 1, 60), longest_ns)
    assert whole / 2 <= backoff_ns(attempt, first_ns, longest_ns, chance) <= whole


@given(st.integers(1, 100), chances)
def test_the_next_wait_is_longer_or_the_longest(attempt: int, chance: float) -> None:
    wait, following = (backoff_ns(number, FIRST_NS, LONGEST_NS, chance) for number in (attempt, attempt + 1))
    assert following > wait or following == backoff_ns(1000, FIRST_NS, LONGEST_NS, chance)


def test_those_who_fail_together_come_back_apart() -> None:
    assert len({backoff_ns(3, FIRST_NS, LONGEST_NS, number / 100) for number in range(100)}) == 100


steps = st.lists(st.sampled_from(["succeed", "fail", "trip", "time"]), max_size=60)


@given(steps, st.integers(1, 5), chances)
def test_the_circuit_is_what_its_story_says(steps: list[str], failures_max: int, chance: float) -> None:
    circuit = Circuit(failures_max, FIRST_NS, LONGEST_NS)
    state, in_a_row, openings = "closed", 0, 0
    for step in steps:
        if step == "time":
            if circuit.state == "open":
                circuit.half_open()
                state = "half-open"
        elif step == "succeed":
            assert circuit.succeed() == (state != "closed")
            state, in_a_row, openings = "closed", 0, 0
        else:
            in_a_row += step == "fail"
            opens = step == "trip" or state == "half-open" or (state == "closed" and in_a_row >= failures_max)
            open_ns = circuit.trip(chance) if step == "trip" else circuit.fail(chance)
            assert (open_ns is not None) == opens
            if open_ns is not None:
                state, openings = "open", openings + 1
                assert open_ns == backoff_ns(openings, FIRST_NS, LONGEST_NS, chance)
        assert circuit.state == state


@given(steps, chances)
def test_one_success_forgets_everything(steps: list[str], chance: float) -> None:
    circuit = Circuit(3, FIRST_NS, LONGEST_NS)
    for step in steps:
        if step == "succeed":
            circuit.succeed()
        elif step == "fail":
            circuit.fail(chance)
        elif step == "trip":
            circuit.trip(chance)
        elif circuit.state == "open":
            circuit.half_open()
    circuit.succeed()
    assert vars(circuit) == vars(Circuit(3, FIRST_NS, LONGEST_NS))
