#!/bin/sh
# One of several workers. They take turns at one job, and each turn has a greater fencing token than the one before.
# A stop is passed on, so that the job is given back at once.
trap 'kill "$run" 2>/dev/null; wait "$run"; exit 0' TERM INT
while :; do
    holdfast run example/deploy -w 5m --owner "$(hostname)" -- \
        sh -c 'echo "$(hostname) works with fencing token $HOLDFAST_FENCING_TOKEN"; sleep 2' &
    run=$!
    wait "$run"
done
