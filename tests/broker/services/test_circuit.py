from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.backoff import backoff_ns
from penstock.broker.services.circuit import Circuit
from penstock.limits import SECOND_NS

FIRST_NS, LONGEST_NS = SECOND_NS, 60 * SECOND_NS
chances = st.floats(0, 1, exclude_max=True)


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
