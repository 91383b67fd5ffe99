"""Saves and loads random nested states in every way (state_fidelity.py)."""

import pytest

pytest.importorskip("torch")
import state_fidelity  # noqa: E402


@pytest.mark.parametrize("seed", range(6))
def test_what_comes_back_is_what_was_there(seed):
    assert state_fidelity.check(seed, 50) is None
