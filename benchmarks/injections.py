"""Sixty runs with an injected NaN or infinity: in the value, the gradient or the data, at the
start, in warm-up or at some draw.

The injected values are data, so that one compiled program serves all injections of a sampler.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np

import momentem as mt

BAD = (0.0, jnp.nan, jnp.inf, -jnp.inf)  # a datum says which; non-finite data are refused
NAMES = ("", "nan", "inf", "-inf")


@jax.custom_jvp
def tilted(x, slope):
    """Return 0, with the gradient `slope`."""
    del slope
    return jnp.zeros_like(x)


@tilted.defjvp
def _tilted_jvp(primals, tangents):
    x, slope = primals
    return jnp.zeros_like(x), slope * tangents[0]


def chosen(is_bad, code):
    values = [jnp.where(code == i, bad, 0.0) for i, bad in enumerate(BAD)]
    found = jnp.select([code == i for i in range(4)], values)
    return jnp.where(is_bad, found, 0.0)


def log_prior(p):
    return -0.5 * jnp.sum(p["x"] ** 2) / 100


def log_likelihood(p, datum):
    """Return that of a normal mean. Where x[0] is between bounds, value or gradient is made bad."""
    y, low, high, value_code, gradient_code = datum
    is_bad = (p["x"][0] > low) & (p["x"][0] < high)
    bad = chosen(is_bad, value_code) + tilted(p["x"][0], chosen(is_bad, gradient_code))
    return -0.5 * jnp.sum((y - p["x"]) ** 2) / 50 + bad


def target(where, code, bounds, batch_size=None):
    """Return a target of fifty data, with posterior mean 0 and standard deviation 1, that is bad
    where x[0] is between bounds, or above one. A bad gradient comes from one datum alone, a bad
    value from all."""
    low, high = bounds if isinstance(bounds, tuple) else (bounds, np.inf)
    y = np.random.default_rng(0).normal(size=(50, 2))
    y = 50**0.5 * (y - y.mean(0)) / y.std(0)  # what gradients differ by is the Fisher information
    lows, highs = np.full(50, float(low)), np.full(50, min(float(high), 1e300))
    values, gradients = np.zeros(50, int), np.zeros(50, int)
    if where == "value":
        values[:] = code
    else:
        gradients[7] = code
    data = (y, lows, highs, values, gradients)
    initial = {"x": jnp.zeros(2)}
    if batch_size is None:
        return mt.dataset(log_prior, log_likelihood, data, initial)
    return mt.dataset(log_prior, log_likelihood, data, initial, batch_size=batch_size)


def fixed_samplers(posterior):
    return {
        "hmc": lambda: mt.hmc(posterior, 0.5, 4),
        "sgnht": lambda: mt.sgnht(posterior, 0.2, 5),
        "sg_nphmc": lambda: mt.sg_nphmc(posterior, 0.2, 5),
    }


def learning_samplers(posterior):
    return {
        "hmc_em": lambda: mt.hmc_em(posterior, 0.5, 4, e_step=mt.e_steps.constant(100)),
        "sgnht_em": lambda: mt.sgnht_em(posterior, 5),
        "sg_nphmc_em": lambda: mt.sg_nphmc_em(posterior, 5),
    }


def run(make, name, where, code, bound, num_warmup, num_draws):
    posterior = target(where, code, bound, None if name.startswith("hmc") else 10)
    sampler = make(posterior)[name]()
    return mt.sample(
        posterior, sampler, num_draws, num_warmup, num_chains=2, spread=0.1, progress=False
    )


def bad_data(bad, batch_size):
    def prior(x):
        return -(x**2)

    def likelihood(x, y):
        return -((x - y) ** 2)

    data = np.array([0.0] * 19 + [bad])
    if batch_size is None:
        return mt.dataset(prior, likelihood, data, 0.0)
    return mt.dataset(prior, likelihood, data, 0.0, batch_size=batch_size)


def cases():
    """Return name -> (a function that runs the case, the pattern of an answer that says where)."""
    found = {}
    for where in ("value", "gradient"):
        for code in (1, 2, 3):
            for kind, batch_size in (("full", None), ("minibatch", 10)):
                found[f"start, {where} {NAMES[code]}, {kind}"] = (
                    lambda w=where, c=code, b=batch_size: mt.sample(
                        t := target(w, c, -1e9, b), mt.hmc(t, 0.5, 4), 10, 10, 2
                    ),
                    "x = ",
                )
            found[f"given start, {where} {NAMES[code]}"] = (
                lambda w=where, c=code: mt.sample(
                    t := target(w, c, 1.0), mt.hmc(t, 0.5, 4), 10, 10, 2,
                    positions={"x": np.array([[0.0, 0.0], [2.0, 0.0]])},
                ),
                "x = ",
            )  # fmt: skip
            for name in ("hmc_em", "sgnht_em", "sg_nphmc_em"):
                found[f"warm-up, {where} {NAMES[code]}, {name}"] = (
                    lambda n=name, w=where, c=code: run(learning_samplers, n, w, c, 0.5, 400, 1),
                    r"(in warm-up|times), the first in chain \d at iteration [1-3]?\d?\d,",
                )
            for name in ("hmc", "sgnht", "sg_nphmc"):
                found[f"draw k, {where} {NAMES[code]}, {name}"] = (
                    lambda n=name, w=where, c=code: run(fixed_samplers, n, w, c, 0.5, 0, 400),
                    r"the first in chain \d at iteration \d+, near x",
                )
    for bad in (np.nan, np.inf, -np.inf):
        for batch_size in (None, 10):
            found[f"data {bad}, batch size {batch_size}"] = (
                lambda bad=bad, batch_size=batch_size: bad_data(bad, batch_size),
                "row 19",
            )
    return found


def answer(inject):
    """Return what a run reports: its error, or its warnings and counts; empty if it is silent."""
    return answer_and_trace(inject)[0]


def answer_and_trace(inject):
    """Return what a run reports, and its trace if there is one."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", mt.SamplingWarning)
        try:
            trace = inject()
        except ValueError as error:
            return f"error: {error}", None
    told = [str(w.message) for w in caught if issubclass(w.category, mt.SamplingWarning)]
    # not those that merely say that draws are few, or that a chunk is bad
    told = [text for text in told if "draws diverged" in text or "not finite" in text]
    if counted := trace.attrs["num_warmup_divergences"]:
        told.append(f"{counted} divergences in warm-up, {trace.attrs['first_divergence']}")
    em = trace["em"].to_dataset() if "em" in trace.children else {}
    if "way_in_not_finite" in em and (met := em["way_in_not_finite"].values[:1]).any():
        told.append(f"gradients on the way in that were not finite, by chain: {met[0].tolist()}")
    return "; ".join(told), trace
