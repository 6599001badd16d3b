"""Nineteen posteriors with trusted answers, from posteriordb, as targets.

`MOMENTEM_DATA=... python benchmarks/trusted_posteriors.py` prints their log densities. The folder
posteriordb in MOMENTEM_DATA has data and references, and its README.md states the models. Every
target starts at 0 on the unconstrained scale, its parameters have the names of the reference, and
its data, not standardised, are arrays of the default dtype, bound as arguments.

Models are log densities of data `d` and parameters `p`.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import scan
from jax.scipy.special import logsumexp
from jax.scipy.stats import beta, cauchy, gamma, norm, t
from jax.tree_util import Partial
from numpyro.distributions import biject_to

import momentem as mt
from momentem.reproduce import datasets

__all__ = ["NAMES", "TrustedPosterior", "posterior"]

RATES = ("k_a", "K_m", "V_m", "sigma")
NUM_STEPS = 40  # of Runge-Kutta, from one observation to the next


class TrustedPosterior(NamedTuple):
    """What is sampled, how its draws become the quantities of the reference, and the reference."""

    name: str
    target: mt.Target
    report: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]
    reference: dict[str, Any]  # by name: mean, sd, mcse_mean, mcse_sd and quantiles, at probs


class Model(NamedTuple):
    logdensity: Callable[[dict, dict], Any]
    data: dict[str, Any]
    parameters: dict[str, tuple]  # constraint, then the shape on the unconstrained scale
    derived: Callable[[dict, dict], dict] = lambda d, p: {}  # what else the reference has


def posterior(name: str) -> TrustedPosterior:
    """Return the posterior of a name in NAMES, with its data and its reference."""
    reference, raw = read("reference")[name], read(name.split("-")[0])
    model = MODELS[name]({key: np.array(value) for key, value in raw.items()})
    data = {key: jnp.asarray(value, float) for key, value in model.data.items()}
    constraints = {key: constraint for key, (constraint, *_) in model.parameters.items()}
    initial = {k: biject_to(c)(jnp.zeros(shape)) for k, (c, *shape) in model.parameters.items()}
    target = mt.density(Partial(model.logdensity, data), initial, constraints)

    def report(draws):
        known = draws | {key: np.asarray(x) for key, x in model.derived(data, draws).items()}
        split = {name: name.rstrip("]").split("[") for name in reference["names"]}
        return {k: known[x][..., int(i[0]) - 1] if i else known[x] for k, (x, *i) in split.items()}

    numbers = {key: np.array(value) for key, value in reference.items() if key != "names"}
    return TrustedPosterior(name, target, report, reference | numbers)


def read(name: str) -> dict[str, Any]:
    path = Path(os.environ.get(datasets.DATA, ".")) / "posteriordb" / f"{name}.json"
    return json.loads(path.read_text())


def normal(x, mean, scale):
    return jnp.sum(norm.logpdf(x, mean, scale))


def lognormal(x, log_median, scale):
    return normal(jnp.log(x), log_median, scale) - jnp.sum(jnp.log(x))


def flat(d, p):
    return normal(d["y"], d["x"] @ p["beta"], p["sigma"])


def cauchy_scale(d, p):
    return flat(d, p) + cauchy.logpdf(p["sigma"], 0, 2.5)


def normal_priors(d, p):
    return flat(d, p) + normal(p["beta"], 0, 10) + norm.logpdf(p["sigma"], 0, 10)


def year_trend(d, p):
    fit = normal(d["y"], p["alpha"] + p["beta"] * d["x"], p["sigma"])
    level = norm.logpdf(p["alpha"], d["pmualpha"], d["psalpha"])
    return fit + level + norm.logpdf(p["beta"], d["pmubeta"], d["psbeta"])


def collinear(d, p):
    fit = normal(d["y"], p["Intercept"] + d["x"] @ p["b"], p["sigma"])
    prior = t.logpdf(p["Intercept"], 3, 8, 10) + t.logpdf(p["sigma"], 3, 0, 10)
    return fit + prior + normal(p["b"], 0, 1)


def autoregression(d, p):
    y, order = d["y"], len(p["beta"])
    lagged = sum(p["beta"][k - 1] * y[order - k : -k] for k in range(1, order + 1))
    prior = normal(p["alpha"], 0, 10) + normal(p["beta"], 0, 10)
    fit = normal(y[order:], p["alpha"] + lagged, p["sigma"])
    return prior + cauchy.logpdf(p["sigma"], 0, 2.5) + fit


def schools(d, p):
    fit = normal(d["y"], effects(d, p)["theta"], d["sigma"])
    prior = norm.logpdf(p["mu"], 0, 5) + cauchy.logpdf(p["tau"], 0, 5)
    return fit + prior + normal(p["theta_trans"], 0, 1)


def effects(d, p):
    return {"theta": p["mu"][..., None] + p["tau"][..., None] * p["theta_trans"]}


def garch(d, p):
    """Return a log density of share = beta1 / (1 - alpha1) in place of beta1, and its Jacobian."""
    a0, a1, b1 = p["alpha0"], p["alpha1"], memory(d, p)["beta1"]
    squares = (d["y"] - p["mu"]) ** 2
    variances = scan(lambda v, e: (a0 + a1 * e + b1 * v, v), d["sigma1"] ** 2, squares)[1]
    return normal(d["y"], p["mu"], jnp.sqrt(variances)) + jnp.log1p(-a1)


def memory(d, p):
    return {"beta1": p["share"] * (1 - p["alpha1"])}


def hidden_markov(d, p):
    """Sum over the states by the forward algorithm, in logs."""
    moves = jnp.log(jnp.stack([p["theta1"], p["theta2"]]))
    fits = norm.logpdf(d["y"][:, None], p["mu"], 1)
    last = scan(lambda s, f: (logsumexp(s[:, None] + moves, axis=0) + f, None), fits[0], fits[1:])[
        0
    ]
    return logsumexp(last) + normal(p["mu"], jnp.array([3.0, 10.0]), 1)


def mixture(d, p):
    weights = jnp.log(jnp.stack([p["theta"], 1 - p["theta"]]))
    parts = weights + norm.logpdf(d["y"][:, None], p["mu"], p["sigma"])
    prior = normal(p["mu"], 0, 2) + normal(p["sigma"], 0, 2) + beta.logpdf(p["theta"], 5, 5)
    return prior + jnp.sum(logsumexp(parts, axis=1))


def poisson_process(d, p):
    f = latent(d, p)["f"]
    prior = gamma.logpdf(p["rho"], 25, scale=1 / 4) + norm.logpdf(p["alpha"], 0, 2)
    return prior + normal(p["f_tilde"], 0, 1) + jnp.sum(d["k"] * f - jnp.exp(f))


def latent(d, p):
    """Return f for one draw or many. Deviates: in float32, where a jitter of 1e-10 is lost and the
    Cholesky factor NaN, it is 1e-5 alpha^2."""
    rho, alpha = (jnp.asarray(p[key])[..., None, None] for key in ("rho", "alpha"))
    covariance = alpha**2 * jnp.exp(-(((d["x"][:, None] - d["x"]) / rho) ** 2) / 2)
    jitter = 1e-10 if rho.dtype == jnp.float64 else 1e-5 * alpha**2
    root = jnp.linalg.cholesky(covariance + jitter * jnp.eye(len(d["x"]), dtype=rho.dtype))
    return {"f": (root @ p["f_tilde"][..., None])[..., 0]}


def runge_kutta(slope: Callable, start: Any, d: dict) -> Any:
    """Solve y' = slope(t, y) from the start to every observation."""

    def step(y, interval):
        t, h = interval
        k1 = slope(t, y)
        k2 = slope(t + h / 2, y + h / 2 * k1)
        k3 = slope(t + h / 2, y + h / 2 * k2)
        k4 = slope(t + h, y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y, y

    return scan(step, start, (d["t"], d["h"]))[1][NUM_STEPS - 1 :: NUM_STEPS]


def steps(times: np.ndarray, power: int) -> dict[str, np.ndarray]:
    """Return times t and sizes h of steps from time 0, which the power makes smaller near 0."""
    share = np.linspace(0, 1, NUM_STEPS + 1)[1:]
    later = times[:-1, None] + np.diff(times)[:, None] * share
    t = np.concatenate([[0.0], times[0] * share**power, later.ravel()])
    return {"t": t[:-1], "h": np.diff(t)}


def elimination(d, p):
    """Absorb and eliminate a drug. Should a step be too long, concentrations stay positive."""

    def slope(t, c):
        c = jnp.maximum(c, 0)
        dose = jnp.exp(-p["k_a"] * t) * d["D"] * p["k_a"] / d["V"]
        return dose - p["V_m"] / d["V"] * c / (p["K_m"] + c)

    c = jnp.maximum(runge_kutta(slope, jnp.zeros_like(p["k_a"]), d), 1e-30)
    prior = sum(cauchy.logpdf(p[key], 0, 1) for key in RATES)
    return prior + lognormal(d["C_hat"], jnp.log(c), p["sigma"])


def predation(d, p):
    """Solve for the logarithms of hares and lynxes, y, which keeps both positive."""
    rates, losses, sign = p["theta"][::2], p["theta"][1::2], jnp.array([1.0, -1.0])
    start = jnp.log(p["z_init"])
    y = runge_kutta(lambda t, y: sign * (rates - losses * jnp.exp(y[::-1])), start, d)
    fit = lognormal(d["y_init"], start, p["sigma"]) + lognormal(d["y"], y, p["sigma"])
    prior = normal(rates, 1, 0.5) + normal(losses, 0.05, 0.05)
    return fit + prior + lognormal(p["sigma"], -1, 1) + lognormal(p["z_init"], np.log(10), 1)


def regression(logdensity: Callable, y: np.ndarray, *columns: Any) -> Model:
    x = np.stack(np.broadcast_arrays(y, *columns)[1:], axis=1)
    return Model(logdensity, {"x": x, "y": y}, {"beta": (real, x.shape[1]), "sigma": (positive,)})


real, positive, unit = mt.constraints.real, mt.constraints.positive, mt.constraints.unit_interval
SHRUB = ("diam1", "diam2", "canopy_height", "total_height", "density")
LEVELS = np.array([[2], [3], [4]])  # of a factor, the first being the intercept's
MODELS: dict[str, Callable[[dict], Model]] = {
    "eight_schools-eight_schools_noncentered": lambda d: Model(
        schools, d, {"theta_trans": (real, 8), "mu": (real,), "tau": (positive,)}, effects
    ),
    "garch-garch11": lambda d: Model(
        garch,
        d,
        {"mu": (real,), "alpha0": (positive,), "alpha1": (unit,), "share": (unit,)},
        memory,
    ),
    "arK-arK": lambda d: Model(
        autoregression, d, {"alpha": (real,), "beta": (real, d["K"]), "sigma": (positive,)}
    ),
    "hmm_example-hmm_example": lambda d: Model(
        hidden_markov,
        d,
        {
            "theta1": (mt.constraints.simplex, 1),
            "theta2": (mt.constraints.simplex, 1),
            "mu": (mt.constraints.positive_ordered_vector, 2),
        },
    ),
    "kidiq-kidscore_momhs": lambda d: regression(cauchy_scale, d["kid_score"], 1, d["mom_hs"]),
    "kidiq-kidscore_interaction": lambda d: regression(
        cauchy_scale, d["kid_score"], 1, d["mom_hs"], d["mom_iq"], d["mom_hs"] * d["mom_iq"]
    ),
    "kidiq_with_mom_work-kidscore_mom_work": lambda d: regression(
        flat, d["kid_score"], 1, *(d["mom_work"] == LEVELS)
    ),
    "earnings-earn_height": lambda d: regression(flat, d["earn"], 1, d["height"]),
    "earnings-logearn_interaction": lambda d: regression(
        flat, np.log(d["earn"]), 1, d["height"], d["male"], d["height"] * d["male"]
    ),
    "mesquite-mesquite": lambda d: regression(
        flat, d["weight"], 1, *(d[key] for key in SHRUB), d["group"]
    ),
    "mesquite-logmesquite": lambda d: regression(
        flat, np.log(d["weight"]), 1, *(np.log(d[key]) for key in SHRUB), d["group"]
    ),
    "nes1972-nes": lambda d: regression(
        *(flat, d["partyid7"], 1, d["real_ideo"], d["race_adj"]),
        *(*(d["age_discrete"] == LEVELS), d["educ1"], d["gender"], d["income"]),
    ),
    "gp_pois_regr-gp_pois_regr": lambda d: Model(
        poisson_process,
        d,
        {"rho": (positive,), "alpha": (positive,), "f_tilde": (real, 11)},
        latent,
    ),
    "one_comp_mm_elim_abs-one_comp_mm_elim_abs": lambda d: Model(
        elimination, d | steps(d["times"], power=4), dict.fromkeys(RATES, (positive,))
    ),
    "kilpisjarvi_mod-kilpisjarvi": lambda d: Model(
        year_trend, d, {"alpha": (real,), "beta": (real,), "sigma": (positive,)}
    ),
    "hudson_lynx_hare-lotka_volterra": lambda d: Model(
        predation,
        d | steps(d["ts"], power=1),
        {"theta": (positive, 4), "z_init": (positive, 2), "sigma": (positive, 2)},
    ),
    "sblrc-blr": lambda d: regression(normal_priors, d["y"], *d["X"].T),
    "low_dim_gauss_mix-low_dim_gauss_mix": lambda d: Model(
        mixture,
        d,
        {"mu": (mt.constraints.ordered_vector, 2), "sigma": (positive, 2), "theta": (unit,)},
    ),
    "diamonds-diamonds": lambda d: Model(
        collinear,
        {"x": d["X"][:, 1:] - d["X"][:, 1:].mean(axis=0), "y": d["Y"]},
        {"b": (real, 24), "Intercept": (real,), "sigma": (positive,)},
    ),
}
NAMES: tuple[str, ...] = tuple(MODELS)


def at_mean(trusted: TrustedPosterior) -> Any:
    """Return the reference's mean, unconstrained; parameters that it lacks are as at the start."""
    means = dict(zip(trusted.reference["names"], trusted.reference["mean"], strict=True))
    parameters = trusted.target.constrain(trusted.target.initial)
    for name, value in parameters.items():
        found = [means.get(f"{name}[{i + 1}]", means.get(name)) for i in range(value.size)]
        parameters[name] = value if None in found else jnp.array(found).reshape(value.shape)
    return trusted.target.unconstrain(parameters)


def main() -> None:
    row = "{:45}{:>4}" + 4 * "{:>15}"
    print(row.format("", "dim", "at the start", "gradient", "at the mean", "gradient"))
    for trusted in map(posterior, NAMES):
        differentiate, cells = jax.jit(jax.value_and_grad(trusted.target.logdensity)), []
        for position in (trusted.target.initial, at_mean(trusted)):
            value, gradient = differentiate(position)
            cells += [f"{value:.6g}", f"{jnp.linalg.norm(gradient):.3g}"]
        print(row.format(trusted.name, len(trusted.target.initial), *cells))


if __name__ == "__main__":
    main()
