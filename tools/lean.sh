#!/usr/bin/env bash
# Builds the gpumeter that people get, tools/lean.sh build OUTPUT [go build flags], or lists its packages with the folder of
# each: tools/lean.sh list. It is that of go build ./cmd/gpumeter, with the SDKs that the hub's store names and never calls
# replaced by the modules in hollow/, and without gRPC's pages of requests (grpcnotrace), which keep every exported method
# in the binary. GO is the Go command, TAGS are further build tags.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}
export CGO_ENABLED=0

# go.mod stays as it is: modules that import ours would ignore a replace, and go install refuses one.
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cp go.sum "$dir/lean.sum"
edits=()
for mod in hollow/*/go.mod; do
	edits+=("-replace=$(sed -n 's/^module //p' "$mod")=./$(dirname "$mod")")
done
"$go" mod edit -print "${edits[@]}" go.mod >"$dir/lean.mod"

flags=(-modfile="$dir/lean.mod" -tags "grpcnotrace${TAGS:+,$TAGS}")
case ${1:-} in
build)
	out=$2
	shift 2
	"$go" build "${flags[@]}" -trimpath -buildvcs=false "$@" -o "$out" ./cmd/gpumeter
	;;
list) "$go" list "${flags[@]}" -deps -f '{{.ImportPath}} {{.Dir}} {{join .Imports ","}}' ./cmd/gpumeter ;;
*)
	echo "usage: tools/lean.sh build OUTPUT [go build flags] | list" >&2
	exit 2
	;;
esac
