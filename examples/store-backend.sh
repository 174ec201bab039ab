#!/bin/sh
# A backend of one's own for stores: docs/stores-command.md says what is asked and what is answered.
#
# This one keeps a pretended data store in a directory, so that the calls can be tried out:
#   mkdir -p /tmp/stores/a /tmp/stores/b; echo 12 >/tmp/stores/a/leaders; echo 9 >/tmp/stores/b/leaders
#   echo '{"call":"state","store":"a","within_ms":5000}' | examples/store-backend.sh /tmp/stores state
# A real one would ask its data store in each place where this one looks at files.
set -eu

books=$1
call=$2
question=$(cat)

# The value of one field of the question. Ids and memos of this backend hold no quotes.
field() {
    printf '%s' "$question" | sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p"
}

fail() {
    printf '{"error":{"kind":"%s","words":"%s"}}\n' "$1" "$2"
    exit 0
}

store=$(field store)
here=$books/$store
leaders() { cat "$here/leaders" 2>/dev/null || echo 0; }
known() { [ -n "$store" ] && [ -d "$here" ]; }
stores() { find "$books" -mindepth 1 -maxdepth 1 -type d | wc -l | tr -d ' '; }

case $call in
members)
    list=
    for directory in "$books"/*/; do
        [ -d "$directory" ] || continue
        id=$(basename "$directory")
        # As `identify` is asked for it, as far as the name tells.
        case $id in *[!0-9]*) address=$id ;; *) address=127.0.0.1:$id ;; esac
        list="$list${list:+,}{\"id\":\"$id\",\"address\":\"$address\",\"role\":\"primary\",\"healthy\":true}"
    done
    printf '{"ok":[%s]}\n' "$list"
    ;;
identify)
    # A store is named after its host or, where many are on one host, after its port.
    address=$(field address)
    for id in "${address%:*}" "${address##*:}"; do
        [ -d "$books/$id" ] || continue
        printf '{"ok":"%s"}\n' "$id"
        exit 0
    done
    fail not_found "nobody has joined from $address"
    ;;
replicas)
    echo '{"ok":1}'
    ;;
state)
    if ! known; then
        if [ -n "$(field memo)" ]; then echo '{"ok":{"state":"removed"}}'; else echo '{"ok":{"state":"unknown"}}'; fi
        exit 0
    fi
    count="{\"value\":$(leaders),\"complete\":true}"
    if [ -f "$here/removing" ]; then
        if [ "$(leaders)" = 0 ]; then progress=1; else progress=0; fi
        printf '{"ok":{"state":"removing","leaders":%s,"data_left":%s,"progress":%s}}\n' \
            "$count" "$(leaders)" "$progress"
    else
        printf '{"ok":{"state":"serving","leaders":%s,"data":%s}}\n' "$count" "$(leaders)"
    fi
    ;;
evictors)
    known || fail not_found "$store"
    if [ -f "$here/evictor" ]; then list='{"name":"evictor"}'; else list=; fi
    printf '{"ok":{"evictors":[%s],"memo":"%s leaders"}}\n' "$list" "$(leaders)"
    ;;
evict_leaders)
    known || fail not_found "$store"
    if [ "$(field on)" = true ]; then
        touch "$here/evictor"
        echo 0 >"$here/leaders"
    else
        rm -f "$here/evictor"
        field memo | cut -d' ' -f1 >"$here/leaders"
    fi
    echo '{"ok":null}'
    ;;
preflight)
    known || fail not_found "$store"
    if [ "$(stores)" -lt 2 ]; then
        printf '{"ok":{"verdict":"refused","refusal":{"code":"no_store_for_leaders","leaders":%s}}}\n' "$(leaders)"
    else
        printf '{"ok":{"verdict":"possible","memo":"%s leaders"}}\n' "$(leaders)"
    fi
    ;;
begin_offline)
    known || { echo '{"ok":"complete"}'; exit 0; }
    touch "$here/removing"
    if [ "$(leaders)" = 0 ]; then echo '{"ok":"complete"}'; exit 0; fi
    # a real data store takes its time: the first call begins, the next one finds it done
    echo 0 >"$here/leaders"
    echo '{"ok":"underway"}'
    ;;
cancel_offline)
    known || fail not_possible "$store was removed already"
    rm -f "$here/removing"
    field memo | cut -d' ' -f1 >"$here/leaders"
    echo '{"ok":"complete"}'
    ;;
forget)
    if known; then
        [ "$(leaders)" = 0 ] || fail not_possible "$store still has $(leaders) leaders"
        rm -rf "$here"
    fi
    echo '{"ok":null}'
    ;;
*)
    echo "unknown call $call" >&2
    exit 2
    ;;
esac
