//! Mistakes in service files: one line each, with file, line, column, service and key; nothing is sent.

mod common;

use common::{Scratch, tidegate};
use expect_test::{Expect, expect};

const GOOD: &str = "name = \"web\"\ncommand = [\"./web\"]\nmemory = \"64MiB\"\n";

/// Applies one file; nobody listens at the address, so that reaching it would be another error.
fn check(text: impl AsRef<[u8]>, expected: Expect) {
    let scratch = Scratch::new();
    scratch.write("web.toml", text.as_ref());
    let done = tidegate(scratch.path(), &["apply", "web.toml"]);
    assert_eq!((done.code, done.stdout.as_str()), (1, ""), "{}", done.stderr);
    expected.assert_eq(&done.stderr);
}

fn service(more: &str) -> String {
    format!("[[service]]\n{GOOD}{more}\n")
}

#[test]
fn syntax() {
    check(
        service("cpu = "),
        expect![[r#"
            error: web.toml:5:7: string values must be quoted
        "#]],
    );
    check(
        service("kind = service"),
        expect![[r#"
            error: web.toml:5:8: string values must be quoted
        "#]],
    );
    check(
        service("cpu = 1\ncpu = 2"),
        expect![[r#"
        error: web.toml:6:1: duplicate key
    "#]],
    );
    check(
        "[[service]\nname = \"web\"\n",
        expect![[r#"
        error: web.toml:1:11: unclosed array table, expected "]"
    "#]],
    );
}

#[test]
fn an_unknown_key_comes_with_the_one_that_was_meant() {
    check(
        "[[service]]\nname = \"web\"\ncomand = [\"./web\"]\nmemory = \"64MiB\"\n",
        expect![[r#"
        error: web.toml:3:1: service "web": unknown key "comand" (did you mean "command"?)
    "#]],
    );
    check(
        service("check = { htp = \"/x\" }"),
        expect![[r#"
        error: web.toml:5:11: service "web": check: unknown key "htp" (did you mean "http"?)
    "#]],
    );
    check(
        service("[service.stop]\nwait = \"1s\""),
        expect![[r#"
        error: web.toml:6:1: service "web": stop: unknown key "wait" (known: signal, grace)
    "#]],
    );
    check(
        "[[services]]\nname = \"web\"\n",
        expect![[r#"
        error: web.toml:1:3: unknown key "services" (did you mean "service"?)
    "#]],
    );
    check(
        "[[stores]]\nname = \"orders\"\n",
        expect![[r#"
            error: web.toml:1:3: unknown key "stores" (known: service, feed, store_group)
        "#]],
    );
    check(
        "[[feed]]\nname = \"orders\"\n",
        expect![[r#"
            error: web.toml:1:1: feed "orders": source: is missing: where rows come from
        "#]],
    );
}

#[test]
fn a_missing_key() {
    check(
        "[[service]]\nname = \"web\"\nmemory = \"64MiB\"\n",
        expect![[r#"
        error: web.toml:1:1: service "web": missing key "command"
    "#]],
    );
    check(
        "[[service]]\ncommand = [\"./web\"]\nmemory = \"64MiB\"\n",
        expect![[r#"
        error: web.toml:1:1: service number 1: missing key "name"
    "#]],
    );
    check(
        service("edge = { port = \"http\" }"),
        expect![[r#"
        error: web.toml:5:8: service "web": edge: missing key "listen"
    "#]],
    );
}

#[test]
fn a_wrong_type() {
    check(
        "[[service]]\nname = \"web\"\ncommand = \"./web\"\nmemory = \"64MiB\"\n",
        expect![[r#"
        error: web.toml:3:11: service "web": command: expected a list, found string "./web"
    "#]],
    );
    check(
        "[[service]]\nname = \"web\"\ncommand = [\"./web\", 80]\nmemory = \"64MiB\"\n",
        expect![[r#"
        error: web.toml:3:21: service "web": command[1]: expected a string, found integer 80
    "#]],
    );
    check(
        service("count = \"6\""),
        expect![[r#"
        error: web.toml:5:9: service "web": count: expected a whole number, found string "6"
    "#]],
    );
    check(
        service("count = 1.5"),
        expect![[r#"
        error: web.toml:5:9: service "web": count: expected a whole number, found number 1.5
    "#]],
    );
    check(
        service("count = 99999999999999999999"),
        expect![[r#"
        error: web.toml:5:9: service "web": count: expected a whole number, found integer 99999999999999999999
    "#]],
    );
    check(
        service("env = { N = 1 }"),
        expect![[r#"
        error: web.toml:5:13: service "web": env.N: expected a string, found integer 1
    "#]],
    );
    check(
        service("stop = \"10s\""),
        expect![[r#"
        error: web.toml:5:8: service "web": stop: expected a table, found string "10s"
    "#]],
    );
    check(
        format!("[service]\n{GOOD}"),
        expect![[r#"
        error: web.toml:1:1: expected a list: write [[service]], with two brackets
    "#]],
    );
    check(
        "service = 1\n",
        expect![[r#"
        error: web.toml:1:11: expected a list, found integer 1
    "#]],
    );
}

#[test]
fn a_wrong_value_is_shown_where_it_stands() {
    check(
        service("kind = \"daemon\""),
        expect![[r#"
        error: web.toml:5:1: service "web": kind: "daemon" is not a kind (service, batch or system)
    "#]],
    );
    check(
        service("count = -1"),
        expect![[r#"
        error: web.toml:5:1: service "web": count: -1 is not between 0 and 100000
    "#]],
    );
    check(
        "[[service]]\nname = \"Web\"\ncommand = [\"./web\"]\nmemory = \"64MiB\"\n",
        expect![[r#"
        error: web.toml:2:1: service "Web": name: "Web" is not a name: lower-case letters, digits and dashes, a letter first, 63 at most
    "#]],
    );
    check(
        "[[service]]\nname = \"web\"\ncommand = [\"./web\"]\nmemory = \"64\"\n",
        expect![[r#"
        error: web.toml:4:1: service "web": memory: "64" is not a size (write it like "64MiB" or "2GiB")
    "#]],
    );
    check(
        "[[service]]\nname = \"web\"\ncommand = []\nmemory = \"64MiB\"\n",
        expect![[r#"
        error: web.toml:3:1: service "web": command: is empty: it names the program to run and its arguments
    "#]],
    );
    check(
        service("ports = [\"http\", \"http\"]"),
        expect![[r#"
        error: web.toml:5:1: service "web": ports: "http" is there twice
    "#]],
    );
    check(
        service("ports = [\"http\"]\nedge = { port = \"htp\", listen = 80 }"),
        expect![[r#"
        error: web.toml:6:10: service "web": edge.port: "htp" is not among the service's ports ["http"]
    "#]],
    );
    check(
        service("ports = [\"http\"]\nedge = { port = \"http\", listen = 0 }"),
        expect![[r#"
        error: web.toml:6:25: service "web": edge.listen: 0 is not a port (1 to 65535)
    "#]],
    );
    check(
        service("ports = [\"http\"]\ncheck = { http = \"/ready\" }"),
        expect![[r#"
        error: web.toml:6:1: service "web": check.port: an http check names the port it asks
    "#]],
    );
    check(
        service("[service.migrate]\nmin_healthy_time = \"10 parsecs\""),
        expect![[r#"
        error: web.toml:6:1: service "web": migrate.min_healthy_time: "10 parsecs" is not a duration (write it like "500ms", "10s" or "1h30m")
    "#]],
    );
    check(
        service("stop = { signal = \"SIGSTOP\" }"),
        expect![[r#"
        error: web.toml:5:10: service "web": stop.signal: "SIGSTOP" is not one of SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2, SIGKILL
    "#]],
    );
    check(
        service("env = { A = \"${NOBODY}\" }"),
        expect![[r#"
        error: web.toml:5:9: service "web": env.A: ${NOBODY} in "${NOBODY}" stands for nothing here
    "#]],
    );
    check(
        service("env.\"a.b\" = \"${NOBODY}\""),
        expect![[r#"
        error: web.toml:5:1: service "web": env.a.b: ${NOBODY} in "${NOBODY}" stands for nothing here
    "#]],
    );
}

#[test]
fn the_second_service_of_a_file_is_found_too() {
    let text = format!("{}\n[[service]]\nname = \"db\"\ncommand = [\"./db\"]\nmemory = 5\n", service(""));
    check(
        text,
        expect![[r#"
        error: web.toml:10:10: service "db": memory: expected a string, found integer 5
    "#]],
    );
}

#[test]
fn the_same_name_twice() {
    check(
        format!("{}{}", service(""), service("")),
        expect![[r#"
        error: web.toml:7:1: service "web" is there twice; the first is at web.toml:2:1
    "#]],
    );
    let scratch = Scratch::new();
    scratch.write("a.toml", service("").as_bytes());
    scratch.write("b.toml", service("").as_bytes());
    let done = tidegate(scratch.path(), &["apply", "a.toml", "b.toml"]);
    assert_eq!(done.code, 1);
    expect![[r#"
        error: b.toml:2:1: service "web" is there twice; the first is at a.toml:2:1
    "#]]
    .assert_eq(&done.stderr);
}

#[test]
fn files_that_are_none() {
    check(
        "",
        expect![[r#"
        error: web.toml: is empty
    "#]],
    );
    check(
        "# nothing here\n",
        expect![[r#"
            error: web.toml: holds nothing: a service starts with [[service]], a feed with [[feed]], a store group with [[store_group]]
        "#]],
    );
    check(
        b"name = \"\xff\xfe\"",
        expect![[r#"
        error: web.toml: is not a text file: byte 8 is not UTF-8
    "#]],
    );
    check(
        vec![b'#'; 1 << 20],
        expect![[r#"
            error: web.toml: has 1MiB or more; split it into several files
        "#]],
    );
    let scratch = Scratch::new();
    let run = |name: &str| tidegate(scratch.path(), &["apply", name]);
    expect![[r#"
        error: missing.toml: there is no such file
    "#]]
    .assert_eq(&run("missing.toml").stderr);
    expect![[r#"
        error: .: is a directory; name the files in it
    "#]]
    .assert_eq(&run(".").stderr);
}

#[test]
fn a_file_that_is_right_reaches_for_the_server() {
    let scratch = Scratch::new();
    scratch.write("web.toml", service("").as_bytes());
    let done = tidegate(scratch.path(), &["apply", "web.toml"]);
    assert_eq!((done.code, done.stdout.as_str()), (1, ""));
    expect![[r#"
        error: cannot reach http://127.0.0.1:1: connection refused; start a cluster here with `tidegate dev`, or name another with --addr or TIDEGATE_ADDR
    "#]].assert_eq(&done.stderr);
}

#[test]
fn a_wrong_file_keeps_the_right_one_from_being_sent() {
    let scratch = Scratch::new();
    scratch.write("a.toml", service("").as_bytes());
    let done = tidegate(scratch.path(), &["apply", "a.toml", "b.toml"]);
    expect![[r#"
        error: b.toml: there is no such file
    "#]]
    .assert_eq(&done.stderr);
}

#[test]
fn standard_input_is_a_file_too() {
    let scratch = Scratch::new();
    let done = common::tidegate_with_input(scratch.path(), &["apply", "-"], b"[[service]]\n");
    expect![[r#"
        error: standard input:1:1: service number 1: missing key "name"
    "#]]
    .assert_eq(&done.stderr);
}
