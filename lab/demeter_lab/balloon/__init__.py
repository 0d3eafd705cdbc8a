# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Real guests with a double balloon: how they are started, tested and measured."""
