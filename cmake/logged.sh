#!/bin/sh
# logged.sh LOG COMMAND...: what the command says goes to LOG; it is shown if the command fails.
log=$1
shift
"$@" >"$log" 2>&1 || {
    status=$?
    cat "$log" >&2
    exit $status
}
