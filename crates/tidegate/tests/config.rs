//! Mistakes in the daemon's configuration: one line each, with file, line, column and key.

mod common;

use common::{Scratch, tidegate};
use expect_test::{Expect, expect};

fn check(text: &str, expected: Expect) {
    let scratch = Scratch::new();
    scratch.write("node.toml", text.as_bytes());
    let done = tidegate(scratch.path(), &["run", "--config", "node.toml"]);
    assert_eq!((done.code, done.stdout.as_str()), (1, ""), "{}", done.stderr);
    expected.assert_eq(&done.stderr);
}

#[test]
fn unknown_keys_and_sections() {
    check(
        "[node]\nid = \"a\"\nrole = [\"worker\"]\n",
        expect![[r#"
        error: node.toml:3:1: node: unknown key "role" (did you mean "roles"?)
    "#]],
    );
    check(
        "[nodes]\nid = \"a\"\n",
        expect![[r#"
        error: node.toml:1:2: unknown key "nodes" (did you mean "node"?)
    "#]],
    );
    check(
        "[scheduler]\ndispatcher_moves_total = 5\n",
        expect![[r#"
        error: node.toml:2:1: scheduler: unknown key "dispatcher_moves_total" (did you mean "dispatcher-moves-total"?)
    "#]],
    );
}

#[test]
fn wrong_types() {
    check(
        "[node]\nid = 1\n",
        expect![[r#"
        error: node.toml:2:6: node.id: expected a string, found integer 1
    "#]],
    );
    check(
        "[timing]\nlease = 5\n",
        expect![[r#"
        error: node.toml:2:9: timing.lease: expected a string, found integer 5
    "#]],
    );
    check(
        "[node]\nroles = \"worker\"\n",
        expect![[r#"
        error: node.toml:2:9: node.roles: expected a list, found string "worker"
    "#]],
    );
    check(
        "node = \"a\"\n",
        expect![[r#"
        error: node.toml:1:8: node: expected a table, found string "a"
    "#]],
    );
}

#[test]
fn the_node() {
    check(
        "[node]\nid = \"Node 1\"\n",
        expect![[r#"
        error: node.toml:2:1: node.id: "Node 1" is not a name for a node: lower-case letters, digits, dashes and dots, 63 at most
    "#]],
    );
    check(
        "[node]\nid = \"a\"\nroles = [\"leader\"]\n",
        expect![[r#"
        error: node.toml:3:1: node.roles: "leader" is not a role (coordinator, worker or edge)
    "#]],
    );
    check(
        "[node]\nid = \"a\"\nroles = []\n",
        expect![[r#"
        error: node.toml:3:1: node.roles: is empty: a daemon has one role at least
    "#]],
    );
    check(
        "[node]\nid = \"a\"\nmemory = \"8GB8\"\n",
        expect![[r#"
        error: node.toml:3:1: node.memory: "8GB8" is not a size (write it like "64MiB" or "2GiB")
    "#]],
    );
    check(
        "[node]\nid = \"a\"\ncpu = -1\n",
        expect![[r#"
        error: node.toml:3:1: node.cpu: -1 is not a number of thousandths of a core (4000 is 4 cores)
    "#]],
    );
    check(
        "[node]\nid = \"a\"\nports = \"20999-20000\"\n",
        expect![[r#"
        error: node.toml:3:1: node.ports: "20999-20000" is not a range of ports (write it like "20000-20999")
    "#]],
    );
    check(
        "[node]\nid = \"a\"\nports = \"80-90\"\n",
        expect![[r#"
        error: node.toml:3:1: node.ports: "80-90" has ports below 1024, which belong to the system
    "#]],
    );
    check(
        "[node]\nid = \"a\"\nhost = \"10.0.0.1:80\"\n",
        expect![[r#"
        error: node.toml:3:1: node.host: "10.0.0.1:80" is not a host (a name or an address, without a port)
    "#]],
    );
}

#[test]
fn listeners() {
    check(
        "[listen]\napi = \"localhost\"\n",
        expect![[r#"
        error: node.toml:2:1: listen.api: "localhost" is not an address with a port (write it like "127.0.0.1:7070")
    "#]],
    );
    check(
        "[listen]\napi = \"0.0.0.0:7070\"\n",
        expect![[r#"
        error: node.toml:2:1: listen.api: "0.0.0.0:7070" is reachable from other machines and has neither TLS nor tokens: make certificates with `tidegate tls init` and name them in [tls], set tokens = true in [auth] and make the first with `tidegate token create`; or start with --insecure if everybody on that network may run commands here
    "#]],
    );
    check(
        "[listen]\nrpc = \"10.0.0.1:7071\"\n",
        expect![[r#"
        error: node.toml:2:1: listen.rpc: "10.0.0.1:7071" is reachable from other machines and has neither TLS nor tokens: make certificates with `tidegate tls init` and name them in [tls], set tokens = true in [auth] and make the first with `tidegate token create`; or start with --insecure if everybody on that network may run commands here
    "#]],
    );
    check(
        "[listen]\nrpc = \"127.0.0.1:7070\"\n",
        expect![[r#"
        error: node.toml:2:1: listen.rpc: 127.0.0.1:7070 is the address of listen.api already
    "#]],
    );
}

#[test]
fn everybody_on_all_addresses_must_say_where_it_is_reached() {
    let scratch = Scratch::new();
    scratch.write("node.toml", b"[node]\nid = \"a\"\n[listen]\napi = \"0.0.0.0:7070\"\n");
    let done = tidegate(scratch.path(), &["run", "--insecure", "--config", "node.toml"]);
    assert_eq!(done.code, 1);
    expect![[r#"
        error: node.toml:1:2: node.host: is missing: listen.api is 0.0.0.0, so say where others reach this machine
    "#]].assert_eq(&done.stderr);
}

#[test]
fn the_store_and_who_joins() {
    check(
        "[store]\nkind = \"etc\"\n",
        expect![[r#"
        error: node.toml:2:1: store.kind: "etc" is not a store (embedded or etcd)
    "#]],
    );
    check(
        "[store]\nkind = \"etcd\"\n",
        expect![[r#"
        error: node.toml:1:2: store.endpoints: is missing: where etcd answers, like ["https://10.0.0.1:2379"]
    "#]],
    );
    check(
        "[store]\nkind = \"etcd\"\nendpoints = [\"e:2379\"]\n",
        expect![[r#"
        error: node.toml:3:1: store.endpoints: "e:2379" starts with neither http:// nor https://
    "#]],
    );
    check(
        "[store]\nendpoints = [\"http://e:2379\"]\n",
        expect![[r#"
        error: node.toml:2:1: store.endpoints: belongs to kind = "etcd"; the embedded store is a file in data_dir
    "#]],
    );
    check(
        "[node]\nroles = [\"worker\"]\n",
        expect![[r#"
        error: node.toml:1:1: join.coordinators: is missing: a daemon without the coordinator role names candidates, like ["10.0.0.1:7071"]
    "#]],
    );
    check(
        "[join]\ncoordinators = [\"10.0.0.1\"]\n",
        expect![[r#"
        error: node.toml:2:1: join.coordinators: "10.0.0.1" is not like "10.0.0.1:7071" (the rpc address of a candidate)
    "#]],
    );
    check(
        "[join]\ncoordinators = [\"10.0.0.1:7071\"]\n",
        expect![[r#"
        error: node.toml:2:1: join.coordinators: the embedded store has exactly one candidate; use store.kind = "etcd", or take "coordinator" out of node.roles
    "#]],
    );
}

#[test]
fn timing_that_would_let_something_run_twice() {
    check(
        "[timing]\nfence_after = \"60s\"\n",
        expect![[r#"
        error: node.toml:2:1: timing.fence_after: 1m is not shorter than offline_after (1m)
    "#]],
    );
    check(
        "[timing]\nlease = \"50s\"\n",
        expect![[r#"
        error: node.toml:2:1: timing.lease: 50s is longer than fence_after (45s)
    "#]],
    );
    check(
        "[timing]\nheartbeat = \"soon\"\n",
        expect![[r#"
        error: node.toml:2:1: timing.heartbeat: "soon" is not a duration (write it like "500ms", "10s" or "1h30m")
    "#]],
    );
}

#[test]
fn what_later_versions_use_is_checked_already() {
    check(
        "[drain]\nnodes_at_once = 0\n",
        expect![[r#"
        error: node.toml:2:1: drain.nodes_at_once: 0 is not between 1 and 100000
    "#]],
    );
    check(
        "[drain]\ndefault_deadline = \"never\"\n",
        expect![[r#"
        error: node.toml:2:1: drain.default_deadline: "never" is not a duration (write it like "500ms", "10s" or "1h30m")
    "#]],
    );
}

#[test]
fn doors() {
    check(
        "[tls]\nca = \"ca.pem\"\n",
        expect![[r#"
        error: node.toml:1:2: tls.cert: is missing: there are ca, cert and key; make certificates with `tidegate tls init`
    "#]],
    );
    check(
        "[auth]\ntokens = true\n",
        expect![[r#"
        error: node.toml:2:1: auth.tokens: needs TLS: make certificates with `tidegate tls init`, and name them in [tls]
    "#]],
    );
    let tls = "[tls]\nca = \"ca.pem\"\ncert = \"n.pem\"\nkey = \"n.key\"\n";
    check(
        &format!("{tls}[listen]\napi = \"10.0.0.1:7070\"\n"),
        expect![[r#"
        error: node.toml:6:1: listen.api: "10.0.0.1:7070" is reachable from other machines and asks for no tokens: set tokens = true in [auth] and make the first with `tidegate token create`; or start with --insecure if everybody on that network may run commands here
    "#]],
    );
    check(
        "[store]\nkind = \"etcd\"\nendpoints = [\"https://e:2379\"]\n",
        expect![[r#"
        error: node.toml:1:2: store.ca: is missing: there are ca, cert and key; make certificates with `tidegate tls init`
    "#]],
    );
}

#[test]
fn a_file_that_is_not_there() {
    let scratch = Scratch::new();
    expect![[r#"
        error: none.toml: there is no such file
    "#]]
    .assert_eq(&tidegate(scratch.path(), &["run", "--config", "none.toml"]).stderr);
}
