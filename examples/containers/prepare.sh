#!/bin/sh
# Makes what a server and its workers need to trust each other: prepare.sh SERVER_FOLDER WORKERS_FOLDER
# A second call changes nothing. The key of the CA is thrown away: to renew anything, remove both folders and call again.
# NAMES are the names and addresses of the server, OWNER is the user who may read the files.
set -eu
umask 077
server=$1
workers=$2
owner=${OWNER-holdfast}
names=${NAMES-DNS:holdfast,DNS:localhost,IP:127.0.0.1}
if [ -e "$workers/worker.token" ]; then
    exit 0
fi
mkdir -p "$server" "$workers"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

key="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
# shellcheck disable=SC2086 # They are several words.
openssl req -x509 $key -days 3650 -subj "/CN=our CA" -addext keyUsage=critical,keyCertSign \
    -keyout "$work/ca.key" -out "$work/ca.pem" 2>/dev/null
# shellcheck disable=SC2086
openssl req $key -subj "/CN=holdfast" -keyout "$server/key.pem" -out "$work/request.pem" 2>/dev/null
printf 'subjectAltName=%s\nauthorityKeyIdentifier=keyid\n' "$names" >"$work/extensions"
openssl x509 -req -in "$work/request.pem" -CA "$work/ca.pem" -CAkey "$work/ca.key" -CAcreateserial -days 825 \
    -extfile "$work/extensions" -out "$server/cert.pem" 2>/dev/null
cp "$work/ca.pem" "$server/ca.pem"
cp "$work/ca.pem" "$workers/ca.pem"

openssl rand -hex 24 >"$server/admin.token"
openssl rand -hex 24 >"$work/worker.token"
{
    echo "admin:$(cat "$server/admin.token"):read+claim+admin"
    echo "workers:$(cat "$work/worker.token")"
} >"$server/tokens"

chown "$owner" "$server"/* "$workers"/* "$work/worker.token"
# The last step: from here on all is there.
mv "$work/worker.token" "$workers/worker.token"
