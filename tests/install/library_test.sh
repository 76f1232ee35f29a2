#!/usr/bin/env bash
# Installs the library into a folder of its own, builds examples/library against it with CMake and with pkg-config, and
# compares what it computes with the command line. Usage: library_test.sh SOURCE BUILD
set -euo pipefail
source=$1 build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --component library --prefix "$work/prefix" >/dev/null
for symbol in $(nm -DC --defined-only "$work"/prefix/lib*/libinvar.so | awk '/ [TDB] /{print $3}' | grep -v '^invar::Session::'); do
  echo "expected invar::Session alone to be seen from outside, found $symbol"; exit 1
done

cmake -S "$source/examples/library" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null
cmake --build "$work/cmake" >/dev/null
export PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name invar.pc)")
# shellcheck disable=SC2046
g++ "$source/examples/library/main.cc" -o "$work/story" $(pkg-config --cflags --libs invar)
export LD_LIBRARY_PATH=$(pkg-config --variable=libdir invar)

"$work/cmake/story" "$source/models/story" >"$work/a"
"$work/story" "$source/models/story" >"$work/b"
cmp "$work/a" "$work/b"
hash=$("$build/invar" generate "$source/models/story" -p "Once upon a time" --max-tokens 40 --temperature 0.8 --seed 7 \
  --max-model-len auto --json | sed -n 's/.*"logits_hash": "\(.*\)".*/\1/p')
[ -n "$hash" ] && [ "$(tail -1 "$work/a")" = "$hash" ] || { echo "expected the command line's hash $hash, found:"; cat "$work/a"; exit 1; }
! "$work/story" "$work" 2>"$work/error" || { echo "expected a failure for a directory that is no model"; exit 1; }
grep -q config.json "$work/error"

# The other examples: what each is there to show.
expect() { grep -Eq "$2" "$work/$1.out" || { echo "examples/library/$1.cc: expected \"$2\", found:"; cat "$work/$1.out"; exit 1; }; }
"$work/cmake/batch" "$source/models/story" >"$work/batch.out"
expect batch '^The name of the girl was [A-Za-z]{2,10}\.  \(log-probability -[0-9.]+, [0-9a-f]{16}\)$'
printf 'Tell me a story.\nWho was in it?\n' | "$work/cmake/chat" "$source/models/story" >"$work/chat.out"
[ "$(grep -c . "$work/chat.out")" -ge 2 ] || { echo "examples/library/chat.cc: expected two answers, found:"; cat "$work/chat.out"; exit 1; }
"$work/cmake/loop" "$source/models/story" >"$work/loop.out"
expect loop '^request 1: .*'
expect loop '^3[45] tokens in all$'
! grep -q '^request 2' "$work/loop.out" || { echo "examples/library/loop.cc: expected no answer of the request that was cancelled"; exit 1; }
for example in "$source"/examples/library/*.cc; do
  [ "$(wc -l <"$example")" -le 40 ] || { echo "$example: expected at most 40 lines"; exit 1; }
done
echo "the installed library computes $hash"
