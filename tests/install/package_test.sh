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
  dpkg-deb --contents "$build"/invar_*.deb | grep -q /usr/bin/invar
  # The Python package as it is installed, without what the build has.
  dpkg-deb --contents "$build"/python3-invar_*.deb | grep -q dist-packages/invar/_invar
  for package in invar python3-invar; do dpkg-deb -x "$build"/${package}_*.deb "$scratch/root"; done
  INVAR_HOME=$scratch/root/usr/share/invar PYTHONPATH=$scratch/root/usr/lib/python3/dist-packages /usr/bin/python3 -c '
import invar
print(invar.LLM("models/story").generate("Once", invar.SamplingParams(max_tokens=4), use_tqdm=False)[0].outputs[0].text)'
done
