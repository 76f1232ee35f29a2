#!/usr/bin/env bash
# What README's two lines install, in a folder of its own: a build in which only the program is made. Usage: program_test.sh SOURCE INVAR
set -euo pipefail
source=$1 invar=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
build=$work/build prefix=$work/prefix
cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DINVAR_TESTS=OFF -DINVAR_CUDA=OFF >"$work/log" 2>&1 || { tail -20 "$work/log"; exit 1; }
cp "$invar" "$build/invar"
cmake --install "$build" --prefix "$prefix" >"$work/log" 2>&1 || { echo "expected an installation, found:"; tail -5 "$work/log"; exit 1; }
for left_out in library python; do
  grep -q "Leaving out the component $left_out" "$work/log" || { echo "expected to be told that $left_out is left out"; exit 1; }
done
[ ! -e "$prefix/include" ] && [ -z "$(find "$prefix" -name 'invarConfig.cmake' -o -name '__init__.py')" ] ||
  { echo "expected nothing of a library that is not there, found:"; find "$prefix"; exit 1; }
# The control: who asks for a component by name is not left without it in silence.
! cmake --install "$build" --prefix "$work/other" --component library >"$work/log" 2>&1 || { echo "expected an error without libinvar"; exit 1; }

# Nothing of this shell's environment, no repository nearby.
clean() { (cd "$work" && env -i PATH=/usr/bin:/bin HOME="$work" "$@"); }
card=$(sed -n 's/.*logits hash of 48 greedy tokens.*`\([0-9a-f]\{64\}\)`.*/\1/p' "$source/models/story/README.md")
hash=$(clean "$prefix/bin/invar" generate -p "Once upon a time" --temperature 0 --max-tokens 48 --json | sed -n 's/.*"logits_hash": "\(.*\)".*/\1/p')
[ -n "$card" ] && [ "$hash" = "$card" ] || { echo "expected the card's logits hash $card, found $hash"; exit 1; }
cp "$prefix/bin/invar" "$work/copied"
for command in "generate -p x" "serve --port 0" "chat"; do
  # shellcheck disable=SC2086
  ! clean "$work/copied" $command </dev/null >"$work/out" 2>"$work/error" && [ ! -s "$work/out" ] && grep -q "expected the bundled model in" "$work/error" ||
    { echo "invar $command, copied away from its models: expected a refusal, found:"; cat "$work/out" "$work/error"; exit 1; }
done
echo "the installed program computes $hash"
