"""The leapfrog's algebra, and broken leapfrogs that the same checks must catch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from momentem.kernels.integrators import PhasePoint, leapfrog
from momentem.masses import dense_mass

from broken_leapfrogs import gradient_sign, half_position_step, mass_for_its_inverse, one_sided

MASS = dense_mass(jnp.array([[1.5, 0.4], [0.4, 0.3]]))


def banana(x):
    return -0.25 * x[0] ** 2 - (x[1] + 0.3 * (x[0] ** 2 - 2)) ** 2 + 0.1 * jnp.sin(x[0])


def run(step, theta, p, step_size, num_steps):
    point = PhasePoint(theta, p, *jax.value_and_grad(banana)(theta))
    return jax.lax.fori_loop(0, num_steps, lambda _, x: step(banana, MASS, step_size, x), point)


def energy(point):
    return MASS.kinetic_energy(point.momentum) - point.logdensity


THETA, P = jnp.array([0.7, -0.2]), jnp.array([0.5, 1.1])


def check_reversible(step):
    end = run(step, THETA, P, 0.1, 20)
    back = run(step, end.position, -end.momentum, 0.1, 20)
    np.testing.assert_allclose(back.position, THETA, atol=1e-10)
    np.testing.assert_allclose(-back.momentum, P, atol=1e-10)


def check_volume(step):
    def flow(z):
        end = run(step, z[:2], z[2:], 0.1, 5)
        return jnp.concatenate([end.position, end.momentum])

    jacobian = jax.jacfwd(flow)(jnp.concatenate([THETA, P]))
    np.testing.assert_allclose(np.linalg.det(jacobian), 1.0, atol=1e-10)


def check_energy_slope(step):
    """Over a fixed time the energy error falls as the square of the step size."""
    step_sizes = 0.1 * 0.5 ** np.arange(5)
    start = energy(run(step, THETA, P, 0.1, 0))
    errors = [
        abs(float(energy(run(step, THETA, P, eps, round(2.0 / eps))) - start)) for eps in step_sizes
    ]
    slope = np.polyfit(np.log(step_sizes), np.log(errors), 1)[0]
    assert 1.75 < slope < 2.25, f"energy error falls as step size^{slope:.2f}, should be ^2"


CHECKS = {
    "reversible": check_reversible,
    "volume": check_volume,
    "energy slope": check_energy_slope,
}


@pytest.mark.parametrize("check", CHECKS)
def test_leapfrog(check):
    CHECKS[check](leapfrog)


@pytest.mark.parametrize(
    ("sabotage", "check"),
    [
        (gradient_sign, "energy slope"),
        (half_position_step, "energy slope"),
        (mass_for_its_inverse, "energy slope"),
        (one_sided, "reversible"),
    ],
)
def test_sabotaged_leapfrog_is_caught(sabotage, check):
    with pytest.raises(AssertionError):
        CHECKS[check](sabotage)
