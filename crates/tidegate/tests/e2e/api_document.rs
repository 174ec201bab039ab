//! The API's own document against a real daemon: Schemathesis makes requests of it, good ones and bad ones, and every
//! answer must be one that the document knows, and none a server's fault.

use std::{
    env,
    io::Write,
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use tokio::process::Command;

use crate::harness::{Cluster, Pace, until, with_program};

/// What a run takes on one core of a busy machine, several times over.
const RUN_MAX: std::time::Duration = std::time::Duration::from_secs(600);

/// Streams that follow would not end; what else they are asked is left to chance.
const CONFIG: &str = "[[operations]]\ninclude-path = \"/v1/events\"\nparameters = { \"query.follow\" = false }\n\
                      [[operations]]\ninclude-path = \"/v1/instances/{id}/logs\"\nparameters = { \"query.follow\" = false }\n";

/// Where `cargo xtask test` puts it, or on the PATH; said where nobody overhears it if it is nowhere.
pub fn schemathesis() -> Option<PathBuf> {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let target = env::var_os("CARGO_TARGET_DIR").map_or(checkout, PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let places = [target.join("tools/schemathesis/bin")].into_iter().chain(env::split_paths(&path));
    let found = places.map(|place| place.join("schemathesis")).find(|program| program.is_file());
    if found.is_none() {
        let _unheard = writeln!(
            std::io::stderr(),
            "SKIPPED, no schemathesis is here: the API's document is not tried (cargo xtask test says why)"
        );
    }
    found
}

/// Every edge of every shape in the document, and so many drawn at random of each operation.
pub const ALL: [&str; 2] = ["coverage,fuzzing", "10"];
/// A few of each operation.
pub const FEW: [&str; 2] = ["fuzzing", "5"];

/// Runs it in this directory, with the same dice every time.
pub async fn run(program: &Path, dir: &Path, base: &str, much: [&str; 2], args: &[&str]) -> Output {
    let config = dir.join("schemathesis.toml");
    std::fs::write(&config, CONFIG).expect("our own directory");
    let mut command = Command::new(program);
    command.args(["--config-file", config.to_str().expect("plain path"), "run"]);
    command.arg(format!("{base}/openapi.json"));
    command.args(["--seed", "7", "--max-examples", much[1], "--phases", much[0]]);
    command.args(["--request-timeout", "20", "--generation-database", "none", "--no-color"]);
    command.args([
        "--checks",
        "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
    ]);
    command.args(args).current_dir(dir).stdin(Stdio::null()).kill_on_drop(true);
    let done = tokio::time::timeout(RUN_MAX, command.output()).await;
    done.expect("it ends by itself").expect("it can be started")
}

pub fn is_well(output: &Output) {
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("Test cases:"), "it tried nothing:\n{said}");
}

#[tokio::test]
async fn whatever_the_api_is_asked_its_document_knows_the_answer() {
    let Some(program) = schemathesis() else { return };
    let cluster = Cluster::start(2, Pace::Steady).await;
    let books = cluster.dir().join("books");
    std::fs::create_dir_all(&books).unwrap();
    let (books, backend) = (books.display(), Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples"));
    let backend = backend.join("store-backend.sh");
    let stores = format!(
        "[[feed]]\nname = \"orders\"\nkind = \"idle\"\nspans = 3\n\
         [[store_group]]\nname = \"kv\"\nreplicas = 1\nmemory = \"16MiB\"\ncpu = 10\nports = [\"kv\"]\n\
         command = [\"sh\", \"-c\", \"mkdir -p {books}/$PORT_KV; echo 5 > {books}/$PORT_KV/leaders; exec sleep 100000\"]\n\
         volume = {{ name = \"data\" }}\n\
         backend = {{ kind = \"command\", command = [\"sh\", {backend:?}, \"{books}\"] }}\n"
    );
    let services = with_program("web", "exec sleep 100000", "count = 2");
    let volume = with_program("db", "exec sleep 100000", "volume = { name = \"data\" }");
    cluster.apply(&format!("{services}\n{volume}\n{stores}")).await;
    cluster.api.until_ready("web", 2).await;
    is_well(&run(&program, cluster.dir(), cluster.api.base(), ALL, &[]).await);
    until("the coordinator to go on as if nothing had been", async || cluster.api.status().await).await;
}
