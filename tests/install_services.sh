#!/bin/sh
# The tests use a real PostgreSQL, Redis, Prometheus and Chromium. Installs what is missing when it can.
set -u
missing=""
[ -n "$(command -v postgres || ls /usr/lib/postgresql/*/bin/postgres 2>/dev/null)" ] || missing="$missing postgresql"
[ -n "$(command -v redis-server)" ] || missing="$missing redis-server"
[ -n "$(command -v prometheus)" ] || missing="$missing prometheus"
[ -n "$(command -v chromium || command -v chromium-browser || command -v google-chrome)" ] || missing="$missing chromium"
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "==> installing for the tests:$missing"
  # The packaged servers are not started: the tests start their own, on free ports, in temporary folders.
  export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
  apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing >/dev/null && exit 0
  echo "==> could not install:$missing; the tests that need them will be skipped" >&2
else
  echo "==> not installed:$missing (root with apt would install them); the tests that need them will be skipped" >&2
fi
exit 0
