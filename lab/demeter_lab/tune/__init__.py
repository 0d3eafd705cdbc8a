# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Knobs of memory managers, searched with one budget for all of them."""
