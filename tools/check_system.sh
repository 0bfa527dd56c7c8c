#!/bin/sh
# Says in one sentence which system package is missing, before pip fails in a hundred lines.
set -eu
PYTHON=${PYTHON:-python3}
fail() { echo "tierup: $1" >&2; exit 1; }

command -v "$PYTHON" >/dev/null 2>&1 || fail "Python 3.11 or newer is missing; install python3 (Debian: apt-get install python3)."
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "Python 3.11 or newer is needed, but $PYTHON is $("$PYTHON" -V 2>&1); name another with PYTHON=…"
"$PYTHON" -c 'import venv, ensurepip' 2>/dev/null || fail "Python's venv module is missing; install it (Debian: apt-get install python3-venv)."
"$PYTHON" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || fail "Python's headers are missing; install them (Debian: apt-get install python3-dev)."
"${CXX:-c++}" --version >/dev/null 2>&1 || fail "a C++20 compiler is missing; install one (Debian: apt-get install g++)."
echo 'int main() { auto f = []<typename T>(T x) { return x; }; return f(0); }' | "${CXX:-c++}" -std=c++20 -x c++ -fsyntax-only - 2>/dev/null || fail "the C++ compiler ${CXX:-c++} does not know C++20; install a newer one (Debian: apt-get install g++)."
