#!/bin/sh
# Installs the brokers that the benchmark compares with, from Debian's packages.
# Needs root and apt-get. No service is left running: the packages' own start-up is forbidden
# while they are unpacked, and the benchmark starts each broker itself on loopback.
# Usage: bench/install.sh PACKAGE...
set -eu

if [ "$#" -eq 0 ]; then
    echo "usage: $0 PACKAGE..." >&2
    exit 64
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "not root: cannot install $*" >&2
    exit 77
fi
if ! command -v apt-get >/dev/null; then
    echo "no apt-get here: cannot install $*" >&2
    exit 77
fi

policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    # 101 is "action forbidden by policy": invoke-rc.d then starts nothing.
    trap 'rm -f "$policy"' EXIT
    trap 'exit 130' INT TERM
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod 755 "$policy"
elif "$policy" bench start 2>/dev/null; then
    echo "$policy allows services to start: remove it or install these yourself: $*" >&2
    exit 77
fi

export DEBIAN_FRONTEND=noninteractive
apt-get install --yes --quiet --no-install-recommends "$@" || {
    # The package lists may be old or absent.
    apt-get update --quiet
    apt-get install --yes --quiet --no-install-recommends "$@"
}
