#!/usr/bin/env bash
# What tests/engines needs beside what `make setup` installs: Ray, for .venv; a Kubernetes API server,
# built from Debian's source, once; and Slurm, from Debian.
# Needs root where Slurm is missing.
# What is there already is left as it is; none of its daemons is started here.
set -euo pipefail

root=$(dirname "${BASH_SOURCE[0]}")/../..
python=$root/.venv/bin/python
if ! "$python" -c 'from importlib.metadata import version; version("ray")' 2>/dev/null; then
  "$python" -m pip --disable-pip-version-check --no-input install -q \
    -c "$root/constraints.txt" 'ray>=2.60,<2.61'
fi

"$root/tests/engines/kubernetes.sh"

missing=()
for program in munged slurmctld slurmd sbatch; do
  command -v "$program" >/dev/null || missing+=("$program")
done
((${#missing[@]})) || exit 0
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
if [[ ! -e /usr/sbin/policy-rc.d ]]; then # daemons for the whole machine are none that tests want
  printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
  chmod +x /usr/sbin/policy-rc.d
  trap 'rm -f /usr/sbin/policy-rc.d' EXIT
fi
apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge
