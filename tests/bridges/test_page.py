"""The page's examples run."""

import re
from pathlib import Path

import pytest

from processes import run_alone

PAGE = Path(__file__).parents[2] / "docs/bridges.md"


@pytest.mark.validate
def test_the_page_s_examples_run():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    run_alone("\n".join(blocks), JAX_DISABLE_MOST_OPTIMIZATIONS="1")


def test_the_extras_are_not_imported_before_they_are_used():
    run_alone(
        "import sys, momentem\n"
        "found = {'pymc', 'pytensor', 'blackjax', 'nutpie'} & set(sys.modules)\n"
        "assert not found, found\n"
    )
