#!/usr/bin/env bash
# The Debian package, as docs/installation.md builds it, without CUDA and with it where there is nvcc.
# usage: package_test.sh SOURCE [--full]: without --full only as far as the build's files are written
set -euo pipefail
source=$1 full=${2:-}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for cuda in OFF ON; do
  build=$scratch/$cuda
  cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=ON -DINVAR_TESTS=OFF -DINVAR_CUDA=$cuda > "$scratch/log" 2>&1 || {
    tail -20 "$scratch/log"
    exit 1
  }
  [ "$full" = --full ] || continue
  cmake --build "$build"
  (cd "$build" && cpack -G DEB)
  dpkg-deb --contents "$build"/*.deb | grep -q /usr/bin/invar
done
