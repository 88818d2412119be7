"""What we rely on of torch where it promises nothing."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tightship_offload import compat  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(params=["swapped", "asked for again"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Older torch cannot swap."""
    if request.param == "swapped":
        if not compat.HAS_SWAP:
            pytest.skip(f"torch {torch.__version__} cannot swap the memory of two storages")
    else:
        monkeypatch.setattr(compat, "HAS_SWAP", False)
    return str(request.param)


def test_views_of_a_storage_see_the_block_that_moves_in(how: str) -> None:
    block, own = torch.empty(64, dtype=torch.uint8), torch.empty(64, dtype=torch.uint8)
    weight = torch.nn.Parameter(torch.ones(4))
    weight.data = own.view(torch.float32)[4:8]
    kept, versions = weight.detach(), weight._version
    own.untyped_storage().resize_(0)
    address = block.data_ptr()
    compat.move_block(block, own)
    assert (block.untyped_storage().nbytes(), own.untyped_storage().nbytes()) == (0, 64)
    assert how != "swapped" or own.data_ptr() == address
    own.fill_(0)
    assert weight.tolist() == kept.tolist() == [0.0] * 4
    assert weight._version == kept._version == versions


def test_two_that_both_have_memory_change_it(how: str) -> None:
    one, other = torch.zeros(64, dtype=torch.uint8), torch.zeros(64, dtype=torch.uint8)
    addresses = one.data_ptr(), other.data_ptr()
    compat.move_block(one, other)
    assert one.untyped_storage().nbytes() == other.untyped_storage().nbytes() == 64
    assert how != "swapped" or (other.data_ptr(), one.data_ptr()) == addresses


def test_a_view_whose_storage_has_no_memory_is_an_error(how: str) -> None:
    block, own = torch.zeros(64, dtype=torch.uint8), torch.empty(64, dtype=torch.uint8)
    weight = own.view(torch.float32).view(4, 4)
    compat.move_block(own, block)
    if how == "swapped":
        compat.move_block(own, torch.empty(0, dtype=torch.uint8))
    own.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="out of bounds for storage of size 0"):
        torch.ones(1, 4) @ weight.t()
