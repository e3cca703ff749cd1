#!/bin/sh
# Runs a command only while a job is ours. Needs curl and what every POSIX system has; no jq, no Python.
#
#     examples/claim_loop.sh github-issue-1842 ./fix.sh 1842
#
# It claims the job, renews the lease in the background at half its TTL, and releases it at the end, as failed if the
# command failed. The command finds its fencing token in HOLDFAST_FENCING_TOKEN. When the lease is lost, and before it
# can be, the command is ended with SIGTERM: the command itself, not what it has started.
#
# Exit codes: the command's own; 75 another has the job; 12 the job is done already; 20 the lease was lost; 69 no lease,
# because something is wrong; 64 wrong use.
#
# From the environment: HOLDFAST_URL, HOLDFAST_TOKEN or HOLDFAST_TOKEN_FILE (without them, what `make run` set up),
# HOLDFAST_OWNER (letters, digits, - _ . :), HOLDFAST_TTL_SECONDS (120 unless given, 8 at least).
set -eu

if [ $# -lt 2 ]; then echo "usage: $0 JOB COMMAND..." >&2; exit 64; fi
config=${XDG_CONFIG_HOME:-$HOME/.config}/holdfast
url=${HOLDFAST_URL:-$(sed -n 's/^url = "\(.*\)"$/\1/p' "$config/client.toml" 2>/dev/null || true)}
job=${url:-http://127.0.0.1:7420}/locks/$1
shift
token=${HOLDFAST_TOKEN:-$(cat "${HOLDFAST_TOKEN_FILE:-$config/token}")} || exit 69
owner=${HOLDFAST_OWNER:-$(uname -n)-$$}
ttl=${HOLDFAST_TTL_SECONDS:-120}
if [ "$ttl" -lt 8 ]; then echo "HOLDFAST_TTL_SECONDS is 8 or more" >&2; exit 64; fi

# ask ROUTE JSON [OPTION OF CURL]... The secrets go through a pipe: everybody on the machine can read a command line.
ask() {
    route=$1; json=$2; shift 2
    printf '%s\n' "header = \"Authorization: Bearer $token\"" "data = $json" |
        curl -sS -K - -H 'Content-Type: application/json' --max-time $((ttl / 8)) "$@" "$job/$route"
}

# The key makes retries one claim; a random one, so that nobody else's claim is ours.
key=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
answer=$(ask acquire "{\"ttl_seconds\":$ttl,\"owner\":\"$owner\"}" \
    --retry 3 --retry-delay 1 --retry-max-time $((ttl / 8)) --retry-connrefused \
    -H "Idempotency-Key: $key") || exit 69
give_up() { printf '%s\n' "$answer" >&2; exit "$1"; }
case $answer in
    '{"status":"acquired",'*) ;;
    '{"status":"held",'* | '{"status":"delayed",'*) give_up 75 ;;
    '{"status":"done",'*) give_up 12 ;;
    *) give_up 69 ;;
esac
lease=$(printf '%s\n' "$answer" | sed -n 's/.*"lease_id":"\([^"]*\)".*/\1/p')
HOLDFAST_FENCING_TOKEN=$(printf '%s\n' "$answer" | sed -n 's/.*,"fencing_token":\([0-9]*\),"expires_at.*/\1/p')
export HOLDFAST_FENCING_TOKEN

# Renews until it is killed. Ends the work when the lease is lost, and before it can be: when two renewals in a row got
# no answer, at most 15/16 of the TTL after the last one that did was sent. The first comes early, because the claim may
# have needed retries and be older than it looks.
keep_renewing() {
    kill -s USR2 $$ || true
    missed=0
    pause=$((ttl / 4))
    while sleep "$pause"; do
        case $(ask renew "{\"lease_id\":\"$lease\",\"keep_ttl\":true}" -o /dev/null -w '%{http_code}') in
            200) missed=0; pause=$((ttl / 2)) ;;
            400 | 401 | 403 | 404 | 410) break ;;
            *) missed=$((missed + 1)); pause=$((ttl / 16)); [ "$missed" -lt 2 ] || break ;;
        esac
    done
    trap '' TERM  # From here on it is lost, whoever ends first.
    kill "$1" || true
    exit 20
}

finish() {
    code=$?
    trap - EXIT
    kill "${beat:-$work}" 2>/dev/null || true  # Without a beat the work must not go on.
    lost=0
    wait "${beat:-$work}" 2>/dev/null || lost=$?
    [ "$lost" -ne 20 ] || { echo 'the lease was lost' >&2; exit 20; }
    outcome=null
    [ "$code" -eq 0 ] || outcome='"failed"'
    ask release "{\"lease_id\":\"$lease\",\"outcome\":$outcome}" -o /dev/null || true
    exit "$code"
}

# What a shell starts has the shell's own traps for a moment, and would swallow a signal. So both say when they are ready,
# and are told nothing before; or two seconds later, because whoever started us may have us ignore what they say.
work='' beat='' working=0 beating=0 told=0
trap finish EXIT
trap 'working=1' USR1
trap 'beating=1' USR2
trap 'told=1' HUP INT TERM
exec 3<&0  # A shell takes standard input away from what it starts in the background.
(kill -s USR1 $$ && exec "$@") <&3 3<&- &
work=$!
keep_renewing "$work" >/dev/null 2>&1 3<&- &
beat=$!
for pause in 0 1 1; do [ "$working$beating" = 11 ] || sleep "$pause" || true; done
trap '' USR1 USR2  # One that came later would end the wait.
trap 'told=1; kill "$work" 2>/dev/null || true' HUP INT TERM
[ "$told" -eq 0 ] || kill "$work" 2>/dev/null || true

code=0
wait "$work" || code=$?
while [ "$told" -eq 1 ]; do  # A signal to us ended the wait early. 127: the command had ended, and its code is known.
    told=0 again=0
    wait "$work" || again=$?
    [ "$again" -eq 127 ] || code=$again
done
exit "$code"
