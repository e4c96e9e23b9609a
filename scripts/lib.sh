# Shared by scripts/run, scripts/test and scripts/check (sourced, POSIX sh). The caller sets ROOT.
#
# prepare run|dev   leaves a ready $VENV: at once when nothing changed since the last time, else through
#                   scripts/bootstrap.py. Everything is said on stderr.

VENV=$ROOT/.venv

say() { printf '%s\n' "$*" >&2; }

works() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; }

# Sets PYTHON_FOUND to the first Python that starts and is new enough. A version manager's shim may be on the path
# and yet not start, hence the trial. $PYTHON, when set, is the person's choice.
find_python() {
    if [ -n "${PYTHON:-}" ]; then
        works "$PYTHON" || { say "PYTHON=$PYTHON does not start or is older than Python 3.10."; return 1; }
        PYTHON_FOUND=$PYTHON
        return 0
    fi
    for candidate in python3 python3.13 python3.12 python3.11 python3.10 python3.14 /usr/bin/python3 \
        /usr/local/bin/python3 /opt/homebrew/bin/python3; do
        command -v "$candidate" >/dev/null 2>&1 || continue
        if works "$candidate"; then
            PYTHON_FOUND=$candidate
            return 0
        fi
    done
    say "localspec needs Python 3.10 or newer, and none was found. Install it and run this again:"
    say "  Debian, Ubuntu:  sudo apt install python3 python3-venv"
    say "  Fedora:          sudo dnf install python3"
    say "  Arch:            sudo pacman -S python"
    say "  macOS:           brew install python"
    return 1
}

# What an installed .venv depends on: the requirements, the installer, the Python inside, and its own place.
stamp_now() {
    printf '%s\n' "$ROOT"
    cksum <"$ROOT/pyproject.toml"
    cat "$ROOT"/scripts/bootstrap*.py | cksum
    cat "$VENV/pyvenv.cfg"
}

# Is .venv ready for this kind (run or dev)? CMAKE_ARGS count only when they are set now.
is_ready() {
    [ -f "$VENV/.localspec-$1" ] && [ -x "$VENV/bin/python" ] || return 1
    [ "$(stamp_now 2>/dev/null)" = "$(cat "$VENV/.localspec-$1")" ] || return 1
    [ -z "${CMAKE_ARGS:-}" ] || [ "$CMAKE_ARGS" = "$(cat "$VENV/.localspec-cmake-args" 2>/dev/null)" ] || return 1
    "$VENV/bin/python" -c '' 2>/dev/null
}

prepare() {
    is_ready "$1" && return 0
    find_python || exit 1
    "$PYTHON_FOUND" "$ROOT/scripts/bootstrap.py" "$1" || exit $?
    stamp_now >"$VENV/.localspec-run"
    [ "$1" = run ] || cp "$VENV/.localspec-run" "$VENV/.localspec-$1"
}
