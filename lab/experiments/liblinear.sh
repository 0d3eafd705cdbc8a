#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs in the guest: liblinear trains on /data/train.libsvm (made by
# `python -m demeter_lab.cli libsvm`); the whole program is measured, reading
# its input included.
set -eu

liblinear-train -s 3 -e 0.001 /data/train.libsvm /tmp/model
sha256sum /tmp/model | cut -c1-16
