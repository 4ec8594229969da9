#!/usr/bin/env bash
# What tests/browser needs beside Python's packages: Chromium, from Debian, and axe-core, from npm.
# Needs root where Chromium is missing. What is there already is left as it is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

AXE_VERSION=4.14.1
axe=.venv/browser/node_modules/axe-core/axe.min.js

if ! command -v chromium >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y --no-install-recommends chromium fonts-dejavu-core
fi
if [[ ! -f $axe ]]; then
  mkdir -p .venv/browser
  npm install --prefix .venv/browser --no-audit --no-fund --ignore-scripts "axe-core@$AXE_VERSION"
fi
