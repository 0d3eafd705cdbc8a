# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Figures of Demeter: pure functions of recorded results."""
