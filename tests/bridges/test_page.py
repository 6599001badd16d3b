"""The page's examples run."""

import re
from pathlib import Path

import pytest

from processes import run_alone

PAGE = Path(__file__).parents[2] / "docs/bridges.md"


@pytest.mark.slow
def test_the_page_s_examples_run():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    run_alone("\n".join(blocks), JAX_DISABLE_MOST_OPTIMIZATIONS="1")
