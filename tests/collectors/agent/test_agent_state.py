"""What an agent remembers over its restart, also where the disk has no room for a new file."""

from __future__ import annotations

from pathlib import Path

from tightship_collectors.agent.state import AgentState, load_state, save_state
from tightship_collectors.jobs.step_reader import RunSteps


def state(steps: int, runs: int = 1) -> AgentState:
    read = {
        f"{number:016x}": RunSteps(start_ns=1, processes={"7": [0, steps, 5]}, ranks={"0": [0, steps, 1, 2]})
        for number in range(runs)
    }
    return AgentState(allocations=[["a", "cpu", 1]], steps=read)


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "agent.json"
    for saved in (state(3, runs=500), state(4)):
        save_state(path, saved)
        assert load_state(path) == saved


def test_it_is_written_over_where_no_new_file_can_be_made(tmp_path: Path) -> None:
    path = tmp_path / "agent.json"
    save_state(path, state(3))
    (tmp_path / "agent.new").mkdir()  # in the way of the draft, as a full disk is
    later = state(4, runs=50)
    save_state(path, later)
    assert load_state(path) == later, "it had room to grow"
    save_state(path, state(5))
    assert load_state(path) == state(5), "nothing is left of what was longer"
    save_state(path, state(6, runs=5000))
    assert load_state(path) == state(5), "what does not fit leaves the last one whole"
    (tmp_path / "agent.new").rmdir()
    save_state(path, state(7))
    assert load_state(path) == state(7)
