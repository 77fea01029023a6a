#!/bin/sh
# The examples' nginx before `mar serve`, with TLS: links have its address, and a stream comes through as it is made.
# usage: test_operation.sh MAR
set -eu
mar=$1
examples=$(cd "$(dirname "$0")/../../examples" && pwd)
folder=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null || true; [ ! -f "$folder/pid" ] || kill "$(cat "$folder/pid")" || true; rm -rf "$folder"' EXIT
PATH=$PATH:/usr/sbin

fail() { echo "test_operation.sh: $*" >&2; exit 1; }

for command in nginx openssl curl; do
    command -v $command >/dev/null 2>&1 || { echo "SKIPPED: serve.operation: $command is not installed"; exit 77; }
done
mkfifo "$folder/address"
"$mar" serve --port 0 --grace 0 --num_iter 64 --num_sampling_steps 300 --threads 1 --dtype f32 >"$folder/address" 2>"$folder/errors" &
pid=$!
read -r url <"$folder/address"
openssl req -x509 -newkey rsa:2048 -nodes -keyout "$folder/key" -out "$folder/cert" -days 2 -subj /CN=localhost 2>/dev/null
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
{ echo "pid $folder/pid; error_log $folder/nginx.log; events {} http { access_log off; client_body_temp_path $folder/body;
        proxy_temp_path $folder/proxy; fastcgi_temp_path $folder/f; uwsgi_temp_path $folder/u; scgi_temp_path $folder/s;"
  sed "s|listen 443|listen 127.0.0.1:$port|; s|http://127.0.0.1:8080|$url|; s|/etc/ssl/certs/[^;]*|$folder/cert|
       s|/etc/ssl/private/[^;]*|$folder/key|" "$examples/nginx.conf"
  echo "}"; } >"$folder/nginx.conf"
nginx -c "$folder/nginx.conf" 2>"$folder/said" || fail "nginx: $(cat "$folder/said")"
ask() { curl -skN --max-time 300 -H 'Content-Type: application/json' -d "$1" "https://localhost:$port/v1/images/generations"; }
ask '{"prompt": "7", "response_format": "url"}' | grep -q "\"url\": \"https://localhost:$port/v1/jobs/" || fail "another link"
# the first event comes while the image is made: the service does not say yet that it is done
ask '{"prompt": "7", "stream": true, "partial_images": 3}' | {
    read -r first
    [ "$first" = "event: image_generation.partial_image" ] || fail "first event: $first"
    curl -s "$url/metrics" | grep -q '^mar_batch_images 1$' || fail "the stream came at the end"
    grep -q '^event: image_generation.completed' || fail "no image"
}
kill "$pid"
wait "$pid" || fail "exit status $?: $(cat "$folder/errors")"
pid=
echo "nginx passes links and streams on"
