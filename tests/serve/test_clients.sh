#!/bin/sh
# `mar serve` with clients that others wrote: curl, OpenAI's Python package, webuiapi, Chromium. What is not installed is left out.
# usage: test_clients.sh MAR
set -eu
mar=$1
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null || true; rm -rf "$folder"' EXIT

fail() { echo "test_clients.sh: $*" >&2; exit 1; }

options="--num_iter 32 --num_sampling_steps 50"
token=0123456789abcdef
echo $token >"$folder/token"
chmod 600 "$folder/token"
# shellcheck disable=SC2086  # the options are words
"$mar" generate --quiet $options --class 7 --num 2 --seed 5 --cfg 2 --out "$folder/seven"
mkfifo "$folder/address"
# shellcheck disable=SC2086
"$mar" serve --port 0 --batch 1 --queue 10 --grace 0 --token_file "$folder/token" $options >"$folder/address" 2>"$folder/errors" &
pid=$!
read -r url <"$folder/address"

if command -v curl >/dev/null 2>&1; then
    ask() { # PATH ARGUMENTS...: prints the status; the body is in the file
        path=$1
        shift
        curl -sS --max-time 300 -o "$folder/body" -w '%{http_code}' -H "Authorization: Bearer $token" "$@" "$url$path"
    }
    json='Content-Type: application/json'
    [ "$(ask /v1/images/generations -H "$json" -d '{"prompt": "7", "n": 2, "seed": 5, "cfg": 2, "response_format": "url"}')" = 200 ] || fail "curl: $(cat "$folder/body")"
    link=$(sed 's/.*"\(http[^"]*1[.]png\)".*/\1/' "$folder/body")
    curl -sS -o "$folder/1.png" "$link"
    cmp "$folder/1.png" "$folder/seven/000001.png" || fail "curl: another picture than mar generate's"
    head -c 40000000 /dev/zero >"$folder/zeros" # curl asks before it sends this much, and sends none of it
    [ "$(ask /v1/images/generations -H "$json" --data-binary "@$folder/zeros")" = 413 ] || fail "curl: a large body"
    [ "$(ask /v1/images/edits -F prompt=3 -F image=@"$folder/zeros")" = 413 ] || fail "curl: a large picture"
    [ "$(ask /v1/images/edits -F prompt=3 -F image=@"$folder/seven/000000.png")" = 400 ] || fail "curl: no mask"
    grep -q "no pixel is transparent" "$folder/body" || fail "curl: $(cat "$folder/body")"
    [ "$(ask /v1/jobs -H "$json" -d '{"prompt": "7"}')" = 202 ] || fail "curl: $(cat "$folder/body")"
    job=$(sed 's/{"id": "\([^"]*\)".*/\1/' "$folder/body")
    curl -sSN --max-time 300 "$url/v1/jobs/$job/events" | grep -q '^event: done' || fail "curl: no end of events"
    echo "curl works"
else
    echo "no curl"
fi

status=0
python3 "$here/openai_client.py" "$url" "$token" "$folder/seven/000001.png" || status=$?
[ $status = 0 ] || [ $status = 77 ] || fail "openai_client.py"
kill "$pid"
wait "$pid" || fail "exit status $?: $(cat "$folder/errors")"
pid=

"$mar" serve --port 0 --model demo-harmon --num_iter 8 --grace 0 --accept_any_size >"$folder/address" 2>"$folder/errors" &
pid=$!
read -r url <"$folder/address"
status=0
python3 "$here/webui_client.py" "$url" || status=$?
[ $status = 0 ] || [ $status = 77 ] || fail "webui_client.py"
kill "$pid"
wait "$pid" || fail "exit status $?: $(cat "$folder/errors")"
pid=

status=0
python3 "$here/browser.py" "$mar" || status=$?
[ $status = 0 ] || [ $status = 77 ] || fail "browser.py"
