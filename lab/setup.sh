#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: lab/setup.sh CACHE [--lock]
# Makes CACHE/lab-venv hold exactly lab/requirements.txt; needs no network when
# it already does. --lock renews lab/requirements.txt instead.
set -euo pipefail

cache=${1:?usage: lab/setup.sh CACHE [--lock]}
here=$(cd "$(dirname "$0")" && pwd)
venv=$cache/lab-venv
stamp=$venv/.requirements

fail() {
	echo "lab: error: $1; next: $2" >&2
	exit 1
}

if [ "${2:-}" = --lock ]; then
	{
		echo "# SPDX-License-Identifier: Apache-2.0 OR MIT"
		echo "# Exact versions of what pyproject.toml asks for; renew with: make lab-lock"
		"$venv/bin/uv" pip compile -q --no-header --no-annotate --upgrade \
			--group "$here/pyproject.toml:dev" "$here/pyproject.toml"
	} >"$here/requirements.txt.new"
	mv "$here/requirements.txt.new" "$here/requirements.txt"
	exit 0
fi

cmp -s "$here/requirements.txt" "$stamp" && exit 0

if ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
	[ "$(id -u)" = 0 ] || fail "python3-venv is not installed" "apt-get install python3-venv"
	echo "lab: installing with apt: python3-venv"
	apt-get install -y -qq python3-venv >/dev/null
fi
echo "lab: installing with pip and uv into $venv: uv, $(sed -n 's/==.*//p' "$here/requirements.txt" | paste -sd' ')"
rm -rf "$venv"
python3 -m venv "$venv"
"$venv/bin/pip" install -q uv ||
	fail "uv could not be installed" "check the network and run make lab again"
"$venv/bin/uv" pip install -q -p "$venv/bin/python" -r "$here/requirements.txt" ||
	fail "the packages of lab/requirements.txt could not be installed" "check the network and run make lab again"
cp "$here/requirements.txt" "$stamp"
