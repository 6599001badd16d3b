"""The contenders on trusted posteriors: momentem's default and NumPyro's NUTS, nothing set."""

import jax
import numpy as np

import momentem as mt
from trusted_posteriors import TrustedPosterior

__all__ = ["CONTENDERS"]


def momentem_default(posterior: TrustedPosterior, seed: int) -> tuple[dict, float, float]:
    """Return draws of the parameters, and gradients per chain in warm-up and in draws."""
    trace = mt.sample(posterior.target, seed=seed, progress=False)
    warmup, draws = (
        float(trace[group].to_dataset()["n_steps"].sum("draw").mean())
        for group in ("warmup_sample_stats", "sample_stats")
    )
    warmup += float(trace["em"].to_dataset()["way_in_gradients"][0].mean())
    parameters = trace["posterior"].to_dataset()
    return {name: parameters[name].values for name in parameters}, warmup, draws


def numpyro_nuts(
    posterior: TrustedPosterior, seed: int, dense_mass: bool
) -> tuple[dict, float, float]:
    """Return the same of NUTS with 1,000 + 1,000 iterations, from starts at 0 ± 1."""
    from numpyro.infer import MCMC, NUTS

    target = posterior.target
    kernel = NUTS(potential_fn=lambda x: -target.logdensity(x), dense_mass=dense_mass)
    mcmc = MCMC(
        kernel,
        num_warmup=1000,
        num_samples=1000,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc._set_collection_params(0, 2000, 2000)  # steps of warm-up are to be counted too
    key = jax.random.key(seed)
    starts = mt.starts(key, target, num_chains=4, spread=1.0)
    mcmc.run(jax.random.PRNGKey(seed), init_params=starts, extra_fields=("num_steps",))
    steps = np.asarray(mcmc.get_extra_fields(group_by_chain=True)["num_steps"])
    positions = mcmc.get_samples(group_by_chain=True)[:, 1000:]
    parameters = jax.jit(jax.vmap(jax.vmap(target.constrain)))(positions)
    warmup, draws = steps[:, :1000].sum(1).mean(), steps[:, 1000:].sum(1).mean()
    return {name: np.asarray(x) for name, x in parameters.items()}, float(warmup), float(draws)


CONTENDERS = {
    "momentem": momentem_default,
    "nuts": lambda posterior, seed: numpyro_nuts(posterior, seed, False),
    "nuts-dense": lambda posterior, seed: numpyro_nuts(posterior, seed, True),
}
