#!/usr/bin/env bash
# Runs the end-to-end tests, and the whole of the tests that make test runs in a short form (those that ask testing.Short):
# tools/e2e.sh [--all] [go test flags]. With --all also against the systems that take long to build. The last line is the counts.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf 'e2e: [%dm%02ds] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

tools=(gcc prometheus prometheus3 victoriametrics jaeger kubernetes etcd containerd slurm chromium npm llmdsim llamacpp epp promadapter kueue dradriver)
if [ "${1:-}" = --all ]; then
	shift
	tools+=(volcano kai koordinator yunikorn ksm jobset lws kuberay)
fi
step "step 1 of 3: what the tests run against (${tools[*]}); cached for all clones of this user, else up to half an hour on 2 cores"
tools/deps.sh --try "${tools[@]}"

step "step 2 of 3: the page"
if command -v npm >/dev/null && make web/node_modules/.package-lock.json; then
	make web
else
	step "no Node.js and npm: the tests of the page are skipped"
fi

mapfile -t long < <(grep -rl --include='*_test.go' 'testing\.Short()' --exclude-dir={node_modules,.deps} . | xargs -n 1 dirname | sort -u)
# One package at a time: tests of two would compete for the cores.
step "step 3 of 3: the tests of ./e2e, and whole those of ${long[*]}; about 25 minutes on 2 cores, with a line for each that ends"
CGO_ENABLED=0 bin/testsum -each -p 1 -tags e2e -count 1 -timeout 30m -parallel 4 "$@" ./e2e "${long[@]}"
