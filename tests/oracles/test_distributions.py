"""Distribution functions against SciPy's, where that is installed, and against tables that everybody prints."""

import subprocess
import sys

import numpy as np
import pytest

from costmodel.physics.run import distributions
from costmodel.physics.run.goodput import best_interval_s

PROBABILITIES = (np.arange(2000) + 0.5) / 2000


def close(found, expected, rel=1e-11, absolute=1e-11):
    np.testing.assert_allclose(found, expected, rtol=rel, atol=absolute)


def test_tables_of_textbooks():
    close(distributions.normal_quantile([0.9, 0.975, 0.995]), [1.281551566, 1.959963985, 2.575829304], 1e-9)
    # Student's t, 97.5 %: 1, 2, 4, 30 and 120 degrees of freedom.
    for freedom, printed in ((1, 12.7062), (2, 4.30265), (4, 2.77645), (30, 2.04227), (120, 1.97993)):
        found = distributions.student_quantile(freedom, distributions.normal_quantile([0.025, 0.975]))
        close(found, [-printed, printed], 1e-5)
    # Poisson, mean 3: P(X > 2) = 1 - e^-3 (1 + 3 + 4.5).
    close(distributions.poisson_upper_tail([2.0, 0.0], [3.0, 0.0]), [1 - np.exp(-3) * 8.5, 0.0])


def test_scipy_agrees():
    special = pytest.importorskip("scipy.special")
    z = np.linspace(-12, 12, 1001)
    close(distributions.normal_cdf(z), special.ndtr(z), absolute=0)
    close(distributions.log_normal_cdf(z), special.log_ndtr(z), absolute=0)
    close(distributions.normal_quantile(PROBABILITIES), special.ndtri(PROBABILITIES))
    for freedom in (1.0, 2.7, 4.0, 8.0, 30.0, 1000.0):
        found = distributions.student_quantile(freedom, special.ndtri(PROBABILITIES).reshape(2, -1))
        close(found, special.stdtrit(freedom, PROBABILITIES).reshape(2, -1), absolute=1e-10)
    for mean in (0.3, 2.0, 50.0, 10_000.0):
        count = np.arange(mean + 10 * mean**0.5 + 10)
        close(
            distributions.poisson_upper_tail(count, mean),
            special.pdtrc(count, mean),
            absolute=1e-12,
            rel=1e-9,
        )
    ratio = np.logspace(-5, 2, 200)
    close(best_interval_s(ratio, 1.0), 1 + special.lambertw(-np.exp(-1 - ratio)).real, rel=1e-9)


def test_no_answer_of_a_job_imports_scipy():
    code = """
import sys
import costmodel as cm
job = dict(model="llama3-8b", cluster="h100-ndr", gpus=8, global_batch=8, seq_len=4096)
cm.plan(**job).to_dict()
cm.estimate(**job, dp=8, zero_stage=3).with_samples(20).to_dict()
cm.run(**job, dp=8, zero_stage=3, tokens=1e12, spare_nodes=1).to_dict()
print([name for name in sys.modules if name.startswith("scipy")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
