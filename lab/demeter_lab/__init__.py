# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Experiments on Demeter, and figures of them: pure functions of recorded results."""
