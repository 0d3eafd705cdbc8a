# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Every table, figure and number of the paper, made again: records, runs, results, report."""
