"""M-steps."""

from momentem.em.m_steps.all import *  # noqa: F403
