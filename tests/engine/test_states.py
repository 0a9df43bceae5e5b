"""The state table is complete, and is the only source of moves."""

import itertools

import pytest

from django_boundedpool.engine.states import LIVE, MOVES, REASONS, TERMINAL, IllegalMove, JobState, Reason, check_move

pytestmark = pytest.mark.fast


def test_every_state_has_a_sentence_a_row_and_reasons():
    for state in JobState:
        assert state.description.endswith(".")
        assert state in MOVES
        assert state in REASONS


@pytest.mark.parametrize(("old", "new"), list(itertools.product(JobState, JobState)))
def test_a_move_is_legal_exactly_when_the_table_has_it(old, new):
    reason = min(REASONS[new])
    if new in MOVES[old]:
        check_move(old, new, reason)
    else:
        with pytest.raises(IllegalMove, match=f"{old.value!r} to {new.value!r}"):
            check_move(old, new, reason)


def test_nothing_leaves_a_terminal_state():
    assert all(not MOVES[state] for state in TERMINAL)


def test_every_terminal_state_can_be_reached_from_a_live_one():
    reachable = set().union(*(MOVES[state] for state in LIVE | {JobState.SUBMITTED}))
    assert reachable >= TERMINAL


def test_a_reason_belongs_to_one_state_only():
    for reason in set(Reason) - {Reason.NONE}:
        assert sum(reason in reasons for reasons in REASONS.values()) == 1


def test_a_foreign_reason_is_refused():
    with pytest.raises(IllegalMove, match="'user' does not belong"):
        check_move(JobState.RUNNING, JobState.FAILED, Reason.USER)


def test_an_unknown_stored_state_is_not_a_member():
    assert "from_the_future" not in JobState._value2member_map_
