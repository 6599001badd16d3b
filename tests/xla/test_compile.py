"""Programs that are soon ready are the same programs, and XLA's own where it knows no better."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from momentem.xla import compile as programs
from momentem.xla.compile import bounded, program, shapes_of


@pytest.fixture
def asked_anew():
    """What XLA takes is asked once per process."""
    programs._is_known.cache_clear()
    yield
    programs._is_known.cache_clear()


def powers(x, *, num):
    return jnp.cumprod(jnp.exp(x)[None] * jnp.ones((num, 1)), axis=0)


def test_it_computes_what_jit_does():
    x = jnp.linspace(-1, 1, 7)
    made = program(powers, static_argnames="num")
    np.testing.assert_allclose(made(x, num=3), powers(x, num=3), rtol=1e-14)
    made(x, num=3)
    made(x, num=4)
    assert made.soon.num_compiled() == made.num_compiled() == 2


def test_settings_that_xla_does_not_know_are_left_out(monkeypatch, asked_anew):
    monkeypatch.setattr(programs, "SOON", {"xla_no_such_setting": True})
    made = program(lambda x: -x)
    assert made(2.0) == -2.0
    assert made.usual.num_compiled() == 1


def test_whoever_names_a_setting_has_it_as_usual(monkeypatch, asked_anew):
    # XLA has read its flags by now: only our own look at them is tested
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=3")
    made = program(lambda x: -x)
    assert made(2.0) == -2.0
    assert made.usual.num_compiled() == 1


def test_fewer_optimisations_still_are_fewer(quick_compilation):
    made = program(lambda x: -x)
    assert made(2.0) == -2.0
    assert made.usual.num_compiled() == 1


def test_programs_of_functions_that_are_gone_are_forgotten(monkeypatch):
    """Each call compiles for another function, as each new model does."""
    monkeypatch.setattr("momentem.xla.compile.MOST", 3)
    call = bounded(lambda function, x: function(x))
    for i in range(10):
        function = jax.tree_util.Partial(lambda x, i=i: x + i)
        assert call(function, 1.0) == 1.0 + i
        assert call._compiled._cache_size() <= 3
    assert call.num_compiled() == 10
    assert call.shapes(jax.tree_util.Partial(jnp.negative), 1.0).shape == ()
    assert shapes_of(jnp.ones_like, jnp.ones(3)).shape == (3,)
