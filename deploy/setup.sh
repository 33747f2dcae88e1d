# Sets up what `deploy/demo` and `deploy/test` need. Sourced by both; POSIX sh, and safe to run again.
# Nothing outside this directory is changed, but for Debian packages where we are root (BACKSTAY_NO_APT=1 forbids that).

here=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
venv=$here/.venv

say() { printf '%s\n' "$*" >&2; }
die() { say "backstay: $*"; exit 1; }

may_use_apt() {
    [ "$(id -u)" -eq 0 ] && [ -z "${BACKSTAY_NO_APT:-}" ] && command -v apt-get >/dev/null 2>&1
}

# Package tools tell at length what they do; it is shown only where they fail.
quietly() {
    output=$(mktemp)
    if DEBIAN_FRONTEND=noninteractive "$@" >"$output" 2>&1; then
        rm -f "$output"
        return 0
    fi
    tail -n 20 "$output" >&2
    rm -f "$output"
    return 1
}

# A fresh machine has no package lists, so they are fetched once before the first install.
apt_install() {
    if [ -z "${apt_updated:-}" ]; then
        say "apt-get update"
        quietly apt-get update || return 1
        apt_updated=1
    fi
    say "apt-get install $*"
    quietly apt-get install -y --no-install-recommends "$@"
}

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    for candidate in "${BACKSTAY_PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11; do
        if [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 && is_new_enough "$candidate"; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    return 1
}

# Debian splits venv and ensurepip off into a package of their own.
make_environment() {
    if ! python=$(find_python); then
        may_use_apt && apt_install python3 python3-venv || true
        python=$(find_python) || die "Python 3.11 or newer is needed; install it, or set BACKSTAY_PYTHON to one"
    fi
    if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        may_use_apt || die "Python's venv is missing; run: sudo apt-get install python3-venv"
        apt_install "python$version-venv" || apt_install python3-venv || die "could not install python3-venv"
    fi
    rm -rf "$venv"
    "$python" -m venv "$venv" || die "could not make a virtual environment in $venv"
}

# The lock pins every package with its hash; what was installed from it is remembered by its checksum.
setup_environment() {
    wanted=$(cksum <"$here/requirements.lock")
    if [ -x "$venv/bin/backstay" ] && [ "$(cat "$venv/.installed" 2>/dev/null || true)" = "$wanted" ]; then
        return 0
    fi
    if ! { [ -x "$venv/bin/python" ] && is_new_enough "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; }; then
        make_environment
    fi
    say "installing the pinned packages into $venv"
    # Wheels only: a compiler must not be needed. python-hostlist is pure Python and published as source alone.
    quietly "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes \
        --only-binary :all: --no-binary python-hostlist --use-pep517 -r "$here/requirements.lock" ||
        die "could not install the packages of requirements.lock; is a package index reachable?"
    quietly "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable "$here" ||
        die "could not install Backstay itself from $here"
    printf '%s\n' "$wanted" >"$venv/.installed"
}

has_slurm() {
    for program in slurmctld slurmd squeue munged; do
        PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null 2>&1 || return 1
    done
}

# Without it the demo uses the simulated cluster, and says so; the tests that need a real Slurm are skipped, and say so.
setup_slurm() {
    if has_slurm; then return 0; fi
    if may_use_apt; then
        apt_install slurm-wlm munge || say "could not install slurm-wlm and munge; going on without a real Slurm"
    fi
}
