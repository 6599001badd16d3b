"""What a posterior says of data: predictions, their scores, log likelihoods,
cross-validation; and what a run looks like: pictures and reports."""

from momentem.predictive._loo import loo
from momentem.predictive._plot import plot
from momentem.predictive._predict import Prediction, predict
from momentem.predictive._prior import prior_predictive
from momentem.predictive._report import page, report
from momentem.predictive.log_likelihoods import log_likelihood
from momentem.predictive.scoring import scores

__all__ = [
    "Prediction",
    "log_likelihood",
    "loo",
    "page",
    "plot",
    "predict",
    "prior_predictive",
    "report",
    "scores",
]
