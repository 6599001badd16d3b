import os
from pathlib import Path

import jaxtyping
import pytest


@pytest.fixture
def without_jaxtyping():
    """Its checks of types would answer first, and users do not have them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def data():
    if not os.environ.get("MOMENTEM_DATA"):
        pytest.skip("MOMENTEM_DATA is not set")
    return Path(os.environ["MOMENTEM_DATA"])
