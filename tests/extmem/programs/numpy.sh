#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: numpy.sh FOLDER
# python3 with numpy: arrays made, sorted, transposed, multiplied.
set -euo pipefail
export OPENBLAS_NUM_THREADS=1
exec /usr/bin/python3 -c '
import hashlib
import numpy
random = numpy.random.default_rng(7)
values = random.random(10_000_000)
order = numpy.sort(values)
print(hashlib.sha256(order.tobytes()).hexdigest())
table = values[:9_000_000].reshape(3000, 3000)
print(hashlib.sha256(numpy.ascontiguousarray(table.T).tobytes()).hexdigest())
print(float((table[:400] @ table[:400].T).sum()))
print(float(numpy.cumsum(order)[-1]))
words = {str(n): [n] * 3 for n in range(200_000)}
print(sum(len(key) for key in words))
'
