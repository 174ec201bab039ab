use super::*;

fn message(text: &str) -> String {
    parse("node.toml", text, false).err().and_then(|failure| failure.message).unwrap_or_default()
}

#[test]
fn an_empty_file_but_for_the_id_is_a_whole_configuration() {
    let config = parse("node.toml", "node.id = \"a\"", false).unwrap();
    assert_eq!((config.id.as_str(), config.roles), ("a", Roles::ALL));
    assert_eq!(config.timing, Timing::default());
    assert_eq!(config.coordinators, ["127.0.0.1:7071"]);
    assert_eq!((config.host.as_str(), config.ports), ("127.0.0.1", 20000..=20999));
    assert_eq!(config.store, StoreConfig::Embedded);
}

#[test]
fn the_example_is_right_and_says_the_defaults() {
    let text = include_str!("../../../../examples/node.toml");
    let config = parse("examples/node.toml", text, false).unwrap();
    assert_eq!(config.timing, Timing::default());
    assert_eq!(config.pd_settle, server::PD_SETTLE);
}

#[test]
fn a_pd_is_not_believed_at_once() {
    let text = |settle: &str| format!("node.id = \"a\"\ntiming.pd_settle = \"{settle}\"");
    assert_eq!(parse("node.toml", &text("3s"), false).unwrap().pd_settle, Millis::secs(3));
    assert!(message(&text("0s")).contains("timing.pd_settle: a PD that has just begun to lead"));
}

#[test]
fn a_listener_beyond_this_machine_needs_its_flag() {
    let text = "[node]\nid = \"a\"\nhost = \"10.0.0.1\"\n[listen]\napi = \"0.0.0.0:7070\"\n";
    assert!(
        message(text).starts_with("node.toml:5:1: listen.api: \"0.0.0.0:7070\" is reachable"),
        "{}",
        message(text)
    );
    let config = parse("node.toml", text, true).unwrap();
    assert_eq!(config.host, "10.0.0.1");
}

#[test]
fn a_daemon_that_does_not_listen_for_rpc_need_not_secure_it() {
    let text = "[node]\nid = \"a\"\nroles = [\"edge\"]\n[listen]\nrpc = \"0.0.0.0:7071\"\n[join]\ncoordinators = [\"c:7071\"]";
    assert_eq!(parse("node.toml", text, false).unwrap().coordinators, ["c:7071"]);
}

#[test]
fn a_worker_listens_for_other_workers_and_has_to_secure_it() {
    let text = "[node]\nid = \"a\"\nroles = [\"worker\"]\nhost = \"10.0.0.1\"\n[listen]\nrpc = \"0.0.0.0:7071\"\n[join]\ncoordinators = [\"c:7071\"]";
    assert!(message(text).contains("listen.rpc: \"0.0.0.0:7071\" is reachable"), "{}", message(text));
    let config = parse("node.toml", text, true).unwrap();
    assert_eq!(config.reached_at(config.rpc), "10.0.0.1:7071");
}

#[test]
fn limits_of_feeds_come_from_the_scheduler_section() {
    let text = "node.id = \"a\"\n[scheduler]\ndrain-maintainer-batch-size = 2\ndispatcher-moves-per-node = 3\ndispatcher-moves-total = 4";
    let feeds = parse("node.toml", text, false).unwrap().feeds;
    assert_eq!((feeds.maintainer_batch, feeds.moves_per_node, feeds.moves_total), (2, 3, 4));
}

#[test]
fn with_etcd_our_own_address_is_one_of_the_candidates() {
    let text = "[node]\nid = \"a\"\n[store]\nkind = \"etcd\"\nendpoints = [\"http://e:2379\"]\n[join]\ncoordinators = [\"b:7071\"]";
    assert_eq!(parse("node.toml", text, false).unwrap().coordinators, ["127.0.0.1:7071", "b:7071"]);
}
