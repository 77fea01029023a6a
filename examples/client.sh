#!/bin/sh
# A client of `mar serve`: asks for an image of a class and writes it as PNG.
#
#     mar serve --port 8080 &
#     ./client.sh http://127.0.0.1:8080 7 seven.png
#
# With a token (mar serve --token_file): TOKEN=... ./client.sh ...
set -eu
address=$1 class=$2 file=$3
curl -sS --fail-with-body -H "Authorization: Bearer ${TOKEN:-}" -H 'Content-Type: application/json' \
    -d "{\"prompt\": \"$class\", \"response_format\": \"b64_json\"}" "$address/v1/images/generations" |
    sed 's/.*"b64_json":[ ]*"\([^"]*\)".*/\1/' | base64 -d >"$file"
