"""Runs of recipes draw no curves here, but in test_run.py, by the command itself, and where they are attached."""

import pytest
from sharing import no_curves


@pytest.fixture(scope="module", autouse=True)
def _no_curves(request):
    if request.module.__name__ == "test_attachments":
        yield
        return
    with no_curves():
        yield
