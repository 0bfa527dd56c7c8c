#!/bin/sh
# Builds and runs the core's tests: plain, under ThreadSanitizer, under AddressSanitizer with UBSan.
# Needs a C++20 compiler and CMake, no Python. Usage: native/test.sh [plain|thread|address]...
set -eu
cd "$(dirname "$0")"
jobs=$(getconf _NPROCESSORS_ONLN)

for kind in ${*:-plain thread address}; do
  sanitize=$kind
  [ "$kind" = plain ] && sanitize=
  build=../build/native-$kind
  cmake -S . -B "$build" -DTIERUP_TESTS=ON -DTIERUP_SANITIZE="$sanitize" -DCMAKE_BUILD_TYPE=Release >/dev/null
  cmake --build "$build" --parallel "$jobs" >"$build/build.log" 2>&1 || { cat "$build/build.log"; exit 1; }
  run=
  # ThreadSanitizer of older compilers cannot map its memory where addresses are spread too widely.
  [ "$kind" = thread ] && setarch -R true 2>/dev/null && run="setarch -R"
  printf '%s: ' "$kind"
  TSAN_OPTIONS=halt_on_error=1 ASAN_OPTIONS=allocator_may_return_null=1:detect_leaks=1 \
    timeout 120 $run "$build/tierup_native_tests"
done
