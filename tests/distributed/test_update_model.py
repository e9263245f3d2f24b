"""The page's figures are those of the model, and the model agrees with packets that are sent one by one."""

import mxkit.distributed.group
import pytest

from benchmarks.update_model import MARKS, NET, PAGE, PIECE, Link, generated, link_bytes, ps_lite, ps_lite_spread, ring


def test_the_page_shows_what_the_model_says():
    text = PAGE.read_text()
    assert text[text.index(MARKS[0]) : text.index(MARKS[1]) + len(MARKS[1])] == generated()
    assert mxkit.distributed.group.PIECE * 4 == PIECE


@pytest.mark.parametrize("workers", [2, 8])
def test_the_time_is_that_of_pieces_on_a_link_with_two_directions(workers):
    link, pieces = Link(1e9, 1e-3), 24
    up = down = 0.0  # when each direction of rank 0's machine is free
    for _ in range(pieces):
        up += (workers - 1) * link.seconds(PIECE)
        down = max(down, up + link.delay) + (workers - 1) * link.seconds(PIECE)
    assert ps_lite(pieces * PIECE, workers, link) == pytest.approx(down + link.delay)


def test_spread_servers_send_as_much_as_a_ring_and_wait_less():
    assert ps_lite_spread(NET, 64, Link(1e9, 0)) == ring(NET, 64, Link(1e9, 0))
    assert ps_lite_spread(NET, 64, Link(1e9, 1e-3)) < ring(NET, 64, Link(1e9, 1e-3))
    assert link_bytes(NET, 2) == 2 * NET
