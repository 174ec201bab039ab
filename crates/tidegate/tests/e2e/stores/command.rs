//! A backend that is a command of the user's: the example, and what goes wrong with one.

use std::path::{Path, PathBuf};

use reqwest::Method;
use serde_json::Value;
use server::view::{List, StoreMemberView};

use crate::harness::{Cluster, Pace, until};

/// The example's pretended data store, and a switch in front of it: `mode` says how the command misbehaves.
struct Stage {
    cluster: Cluster,
    books: PathBuf,
}

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/store-backend.sh")
}

impl Stage {
    async fn start(replicas: u32) -> Stage {
        let cluster = Cluster::start(3, Pace::Steady).await;
        let books = cluster.dir().join("books");
        std::fs::create_dir_all(&books).unwrap();
        let stage = Stage { cluster, books };
        stage.behave("");
        let said = stage.cluster.apply(&stage.file(replicas)).await;
        assert_eq!(said, "kv created (store group)\n");
        stage.until_serving(replicas as usize).await;
        stage
    }

    fn behave(&self, mode: &str) {
        std::fs::write(self.cluster.dir().join("mode"), mode).unwrap();
    }

    /// A process joins by itself, once; its volume is its memory of that.
    fn file(&self, replicas: u32) -> String {
        let (books, mode) = (self.books.display(), self.cluster.dir().join("mode"));
        let switch = format!(
            "case $(cat {}) in rubbish) echo hello there;; hang) sleep 1000;; down) exit 7;; *) exec sh {} {books} $1;; esac",
            mode.display(),
            example().display(),
        );
        format!(
            "[[store_group]]\nname = \"kv\"\nreplicas = {replicas}\nmemory = \"16MiB\"\ncpu = 10\nports = [\"kv\"]\n\
             command = [\"sh\", \"-c\", \"test -e $VOLUME/joined || {{ mkdir -p {books}/$PORT_KV; \
             echo 5 > {books}/$PORT_KV/leaders; touch $VOLUME/joined; }}; exec sleep 100000\"]\n\
             volume = {{ name = \"data\" }}\nmax_eviction_time = \"2s\"\n\
             backend = {{ kind = \"command\", command = [\"sh\", \"-c\", '{switch}', \"backend\"] }}\n"
        )
    }

    async fn stores(&self) -> Result<Vec<StoreMemberView>, String> {
        let (_, body) = self.cluster.api.ask(Method::GET, "/v1/stores", None).await?;
        Ok(serde_json::from_value::<List<_>>(body).map_err(|error| error.to_string())?.items)
    }

    async fn until_stores(&self, what: &str, holds: impl Fn(&[StoreMemberView]) -> bool) {
        until(what, async || {
            let stores = self.stores().await?;
            if holds(&stores) { Ok(()) } else { Err(format!("{stores:#?}")) }
        })
        .await;
    }

    async fn until_serving(&self, count: usize) {
        self.until_stores("as many to serve", |stores| {
            let well = |store: &StoreMemberView| {
                store.state == "serving"
                    && !store.offline
                    && store.evictor.is_none()
                    && store.leaders == Some(5)
            };
            stores.len() == count && stores.iter().all(well)
        })
        .await;
    }

    async fn until_waits(&self, store: &str, code: &str, words: &str) {
        self.until_stores(&format!("{store} to say {code} and {words:?}"), |stores| {
            let wait = stores.iter().find(|it| it.id == store).and_then(|it| it.wait.as_ref());
            wait.is_some_and(|wait| wait.code == code && wait.message.contains(words))
        })
        .await;
    }

    async fn refused(&self, args: &[&str]) -> String {
        let done = self.cluster.run(args).await;
        assert_ne!(done.code, 0, "{args:?}: {}", done.stdout);
        done.stderr
    }
}

#[tokio::test]
async fn a_store_leaves_in_two_steps_and_its_process_and_volume_go_last() {
    let stage = Stage::start(3).await;
    let done = stage.cluster.run(&["store", "list", "-o", "wide"]).await;
    assert!(done.stdout.contains("kv-0") && done.stdout.contains("serving"), "{}", done.stdout);
    stage.cluster.run(&["store", "mark", "kv-0"]).await;
    stage.cluster.run(&["scale", "store-group/kv", "2"]).await;
    stage.until_serving(2).await;
    let left: Vec<String> = stage.stores().await.unwrap().into_iter().map(|store| store.id).collect();
    assert_eq!(left, ["kv-1", "kv-2"]);
    assert_eq!(std::fs::read_dir(&stage.books).unwrap().count(), 2, "forgotten by its backend");
    until("its volume to be gone", async || {
        let (_, body) = stage.cluster.api.ask(Method::GET, "/v1/volumes", None).await?;
        let there = body["items"].as_array().into_iter().flatten().any(|volume| volume["id"] == "kv-data-0");
        if there { Err(body.to_string()) } else { Ok(()) }
    })
    .await;
}

#[tokio::test]
async fn what_a_backend_does_wrong_is_said_and_nothing_is_deleted_on_a_guess() {
    let stage = Stage::start(3).await;
    stage.cluster.run(&["store", "mark", "kv-2"]).await;
    for (mode, code, words) in [
        ("rubbish", "backend_error", "hello there"),
        ("down", "backend_error", "7"),
        ("hang", "backend_unreachable", ""),
    ] {
        stage.behave(mode);
        stage.cluster.run(&["scale", "store-group/kv", "2"]).await;
        stage.until_waits("kv-2", code, words).await;
        assert_eq!(stage.stores().await.unwrap().len(), 3);
        stage.behave("");
        let back = stage.cluster.run(&["scale", "store-group/kv", "3"]).await;
        assert_eq!(back.code, 0, "{}", back.stderr);
        stage.until_serving(3).await;
    }
}

#[tokio::test]
async fn bad_input_about_stores_is_refused_with_the_reason() {
    let stage = Stage::start(2).await;
    let said = stage.refused(&["scale", "store-group/kv", "0"]).await;
    assert!(said.contains("1"), "what the backend needs: {said}");
    assert!(stage.refused(&["scale", "store-group/nowhere", "3"]).await.contains("nowhere"));
    assert!(stage.refused(&["store", "mark", "kv-99"]).await.contains("kv-99"));
    assert!(stage.refused(&["store", "status", "kv-99"]).await.contains("kv-99"));
    assert!(stage.refused(&["remove", "store-group/kv"]).await.contains("--destroy-data"));
    assert!(stage.refused(&["remove", "service/kv"]).await.contains("kv"));
    assert!(stage.refused(&["store", "restart", "kv-0", "--cancel"]).await.contains("kv-0"));
    let bad = stage
        .cluster
        .file("bad.toml", &stage.file(2).replace("\"command\", command", "\"cassandra\", command"));
    let said = stage.refused(&["apply", bad.to_str().unwrap()]).await;
    assert!(said.contains("backend.kind") && said.contains("cassandra"), "{said}");
    let less = stage.cluster.file("less.toml", &stage.file(2).replace("replicas = 2", "replicas = -1"));
    assert!(stage.refused(&["apply", less.to_str().unwrap()]).await.contains("replicas"));
    let (status, body) = stage.cluster.api.ask(Method::DELETE, "/v1/store-groups/kv", None).await.unwrap();
    assert_eq!((status, &body["error"]["code"]), (412, &Value::from("destroys_data")));
    let done = stage.cluster.run(&["remove", "store-group/kv", "--destroy-data"]).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    stage.until_stores("all of them to be gone", <[StoreMemberView]>::is_empty).await;
}
