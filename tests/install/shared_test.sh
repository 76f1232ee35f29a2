#!/usr/bin/env bash
# A file that the demo's build has compiled is not compiled again by a wheel's or a package's: the second build takes it from the compiler
# cache. Usage: shared_test.sh SOURCE
set -euo pipefail
source=$1 object=src/base/CMakeFiles/invar_toml.dir/Unity/unity_0_cxx.cxx.o
command -v ccache >/dev/null || { echo "skipped: ccache is not installed"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset CI "${!CCACHE_@}" "${!CMAKE_@}"
export CCACHE_DIR=$work/cache

# Builds the object in a folder of its own; prints how many files came from the cache.
compile() {
  local name=$1; shift
  cmake -S "$source" -B "$work/$name" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=ON -DINVAR_CUDA=OFF -DINVAR_TESTS=OFF "$@" >"$work/log" 2>&1 || { tail -20 "$work/log" >&2; exit 1; }
  ccache --zero-stats >/dev/null
  ninja -C "$work/$name" "$object" >"$work/log" 2>&1 || { tail -20 "$work/log" >&2; exit 1; }
  ccache --print-stats | awk '/^(direct|preprocessed)_cache_hit/ { sum += $2 } END { print sum + 0 }'
}
first=$(compile demo) second=$(compile wheel -DSKBUILD=2) other=$(compile other -DCMAKE_CXX_FLAGS=-fno-inline)
[ "$first $second $other" = "0 1 0" ] || { echo "expected 0, 1 and 0 files from the cache for a first build, a second and one with another flag; found $first, $second, $other"; exit 1; }
cmp "$work/demo/$object" "$work/wheel/$object"
echo "the second build took its object from the cache"
