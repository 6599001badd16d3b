import os
from pathlib import Path

import pytest


@pytest.fixture
def data():
    if not os.environ.get("MOMENTEM_DATA"):
        pytest.skip("MOMENTEM_DATA is not set")
    return Path(os.environ["MOMENTEM_DATA"])
