"""Names of keys are unique, and short enough for LMDB."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.storage.history.versions import name_of

ABOUT = st.text(st.characters(codec="utf-8", exclude_characters="\n"), min_size=1, max_size=80)


@given(st.lists(st.tuples(ABOUT, st.binary(min_size=1, max_size=300)), unique=True))
@example([("a", b"b" * 61), ("a", b"b" * 62), ("a", b"b" * 63), ("a", b"b" * 62 + b"c"), ("a" * 70, b"b")])
def test_no_two_keys_have_the_same_name(keys: list[tuple[str, bytes]]) -> None:
    names = [name_of(*key) for key in keys]
    assert len(set(names)) == len(names)
    assert max(map(len, names), default=0) <= 511, "or LMDB does not take it"
