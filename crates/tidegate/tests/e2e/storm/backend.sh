# The data store of the storm's store group: a directory per store, a file per key. Moving a key is renaming it.
# docs/stores-command.md says what is asked and what is answered.
set -eu

books=$1
call=$2
question=$(cat)
exec 9>"$books.lock"
flock 9

field() {
    printf '%s' "$question" | sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p"
}
fail() {
    printf '{"error":{"kind":"%s","words":"%s"}}\n' "$1" "$2"
    exit 0
}

store=$(field store)
here=$books/$store
known() { [ -n "$store" ] && [ -d "$here" ]; }
keys() { find "$here/keys" -type f | wc -l | tr -d ' '; }

# Those that may take keys, but for this one.
others() {
    for directory in "$books"/*/; do
        id=$(basename "$directory")
        [ -d "$directory" ] && [ "$id" != "$store" ] || continue
        [ -e "$directory/removing" ] || [ -e "$directory/evictor" ] || echo "$id"
    done
}
hand_on() {
    set -- $(others)
    [ $# -gt 0 ] || return 0
    for key in "$here"/keys/*; do
        [ -e "$key" ] || continue
        mv "$key" "$books/$1/keys/"
        set -- "$@" "$1"
        shift
    done
}

case $call in
members)
    list=
    for directory in "$books"/*/; do
        [ -d "$directory" ] || continue
        id=$(basename "$directory")
        list="$list${list:+,}{\"id\":\"$id\",\"address\":\"$(cat "$directory/address")\",\"role\":\"primary\",\"healthy\":true}"
    done
    printf '{"ok":[%s]}\n' "$list"
    ;;
identify)
    address=$(field address)
    for directory in "$books"/*/; do
        [ "$(cat "$directory/address" 2>/dev/null)" = "$address" ] || continue
        printf '{"ok":"%s"}\n' "$(basename "$directory")"
        exit 0
    done
    fail not_found "nobody has joined from $address"
    ;;
replicas) echo '{"ok":1}' ;;
state)
    if ! known; then
        if [ -n "$(field memo)" ]; then echo '{"ok":{"state":"removed"}}'; else echo '{"ok":{"state":"unknown"}}'; fi
        exit 0
    fi
    count="{\"value\":$(keys),\"complete\":true}"
    if [ -f "$here/removing" ]; then
        if [ "$(keys)" = 0 ]; then progress=1; else progress=0; fi
        printf '{"ok":{"state":"removing","leaders":%s,"data_left":%s,"progress":%s}}\n' "$count" "$(keys)" "$progress"
    else
        printf '{"ok":{"state":"serving","leaders":%s,"data":%s}}\n' "$count" "$(keys)"
    fi
    ;;
evictors)
    known || fail not_found "$store"
    if [ -f "$here/evictor" ]; then list='{"name":"evictor"}'; else list=; fi
    printf '{"ok":{"evictors":[%s],"memo":"plain"}}\n' "$list"
    ;;
evict_leaders)
    known || fail not_found "$store"
    if [ "$(field on)" = true ]; then
        touch "$here/evictor"
        hand_on
    else
        rm -f "$here/evictor"
    fi
    echo '{"ok":null}'
    ;;
preflight)
    known || fail not_found "$store"
    if [ -z "$(others)" ]; then
        printf '{"ok":{"verdict":"refused","refusal":{"code":"no_store_for_leaders","leaders":%s}}}\n' "$(keys)"
    else
        echo '{"ok":{"verdict":"possible","memo":"plain"}}'
    fi
    ;;
begin_offline)
    known || { echo '{"ok":"complete"}'; exit 0; }
    if [ -f "$here/removing" ]; then hand_on; else touch "$here/removing"; fi
    if [ "$(keys)" = 0 ]; then echo '{"ok":"complete"}'; else echo '{"ok":"underway"}'; fi
    ;;
cancel_offline)
    known || fail not_possible "$store was removed already"
    rm -f "$here/removing"
    echo '{"ok":"complete"}'
    ;;
forget)
    if known; then
        [ "$(keys)" = 0 ] || fail not_possible "$store still has $(keys) keys"
        rm -rf "$here"
    fi
    echo '{"ok":null}'
    ;;
*)
    echo "unknown call $call" >&2
    exit 2
    ;;
esac
