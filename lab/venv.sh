#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: lab/venv.sh CACHE NAME
# Makes CACHE/NAME-venv hold exactly lab/NAME/requirements.txt; needs no network when it
# already does. Suites that want the same one wait for each other.
set -euo pipefail

cache=${1:?usage: lab/venv.sh CACHE NAME} name=${2:?usage: lab/venv.sh CACHE NAME}
wanted=$(cd "$(dirname "$0")" && pwd)/$name/requirements.txt
venv=$cache/$name-venv
stamp=$venv/.requirements

mkdir -p "$cache"
exec 9>"$venv.lock"
flock 9
cmp -s "$wanted" "$stamp" && exit 0

echo "$name: installing with pip into $venv: $(sed -n 's/==.*//p' "$wanted" | paste -sd' ')"
rm -rf "$venv"
python3 -m venv "$venv"
"$venv/bin/pip" install -q -r "$wanted" || {
	echo "$name: error: the packages of lab/$name/requirements.txt could not be installed; next: check the network and run it again" >&2
	exit 1
}
cp "$wanted" "$stamp"
