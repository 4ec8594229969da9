#!/usr/bin/env bash
# What tests/engines needs beside Python's packages: Slurm, from Debian. Needs root where it is missing.
# What is there already is left as it is; none of its daemons is started here.
set -euo pipefail

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
