#!/bin/sh
# What `make demo` shows: plan, apply, verify, a value broken by hand, mend and rollback on a copy of a recorded host.
# Every command is printed as a user would type it. Nothing outside the folder given as $1 is read or written.
set -u
dir=$1
rm -rf "$dir"

show() {
    expected=$1
    shift
    printf '\n$ %s\n' "$*"
    "$@"
    code=$?
    if [ "$code" != "$expected" ]; then
        echo "demo: exit code $code where $expected is right" >&2
        exit 1
    fi
}

list() {
    (cd "$dir" && find . \( -path ./run/tuner -o -path ./var/lib/tuner \) -prune -o -type f -exec cksum {} + \
        -o -type l -printf '%p -> %l\n' | sort)
}

show 0 tuner host copy plain-vm "$dir"
list > "$dir.before"
show 10 tuner plan --root "$dir" --profile linux-gpu
show 0 tuner apply --root "$dir" --profile linux-gpu
show 0 tuner verify --root "$dir"
printf '\n$ echo 60 > %s/proc/sys/vm/swappiness      # somebody changes a value by hand\n' "$dir"
echo 60 > "$dir/proc/sys/vm/swappiness"
show 10 tuner verify --root "$dir"
show 0 tuner apply --root "$dir" --profile linux-gpu
show 0 tuner verify --root "$dir"
show 0 tuner rollback --root "$dir" --to 0
list > "$dir.after"
if cmp -s "$dir.before" "$dir.after"; then
    printf '\nEvery file of the host is as it was before, byte for byte.\n'
    rm -rf "$dir" "$dir.before" "$dir.after"
else
    echo "demo: the host is not as it was; see $dir.before and $dir.after" >&2
    exit 1
fi
