//! A real PD on loopback, where there is one.

use std::env;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use crate::contract::Backend;
use crate::pd::{Pd, PdConfig};
use crate::secret::Endpoint;
use crate::testing::process::{PATIENCE, Running};

/// Ports are picked by binding and letting go, so somebody else may grab one in between.
const START_TRIES: usize = 5;

/// Where `cargo xtask test` puts it, or on the PATH.
fn binary() -> Option<PathBuf> {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let target = env::var_os("CARGO_TARGET_DIR").map_or(checkout, PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let places = [target.join("tools")].into_iter().chain(env::split_paths(&path));
    places.map(|place| place.join("pd-server")).find(|program| program.is_file())
}

/// As PD is, but that small regions next to each other are left as they are, and that few leaders are evened out as well:
/// by itself PD leaves a store without any as long as no other has more than ten.
const CONFIG: &str =
    "[schedule]\nmax-merge-region-size = 0\nmax-merge-region-keys = 0\ntolerant-size-ratio = 1.0\n";

pub struct PdServer {
    running: Option<Running>,
    directory: tempfile::TempDir,
    program: PathBuf,
    url: String,
    peers: String,
}

impl PdServer {
    /// `None`, and a word on stderr that no test's capture hides, where there is no PD.
    ///
    /// # Panics
    /// When it is there and does not start.
    pub async fn start() -> Option<PdServer> {
        let Some(program) = binary() else {
            let _unheard = writeln!(
                std::io::stderr(),
                "SKIPPED, no pd-server is here: what needs a real PD is not tested (cargo xtask test says why)"
            );
            return None;
        };
        for _try in 0..START_TRIES {
            let mut server = PdServer::lay_out(&program);
            server.launch();
            if server.answers().await {
                return Some(server);
            }
            let log = fs::read_to_string(server.directory.path().join("pd/log")).unwrap_or_default();
            let _unheard = writeln!(std::io::stderr(), "PD did not start:\n{log}");
        }
        panic!("PD did not start");
    }

    fn lay_out(program: &Path) -> PdServer {
        let directory = tempfile::Builder::new().prefix("tidegate-pd-").tempdir().expect("a directory");
        fs::create_dir(directory.path().join("pd")).expect("a directory");
        fs::write(directory.path().join("pd/config.toml"), CONFIG).expect("a file");
        let sockets = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let [url, peers] =
            sockets.map(|socket| format!("http://{}", socket.local_addr().expect("a bound socket")));
        PdServer { running: None, directory, program: program.to_owned(), url, peers }
    }

    /// Starts it with the data it had.
    pub fn launch(&mut self) {
        let place = self.directory.path().join("pd");
        let text = |path: PathBuf| path.display().to_string();
        let program = text(self.program.clone());
        let (data, config) = (text(place.join("data")), text(place.join("config.toml")));
        let (url, peers) = (&self.url, &self.peers);
        let argv = [&program, "--name", "pd", "--data-dir", &data, "--config", &config];
        let urls = ["--client-urls", url, "--peer-urls", peers];
        self.running = Some(Running::start(&place, &[&argv[..], &urls[..]].concat()));
    }

    /// Without a warning.
    pub fn kill(&mut self) {
        self.running = None;
    }

    async fn answers(&self) -> bool {
        let patient = PdConfig { timeout: PATIENCE / 30, ..self.config() };
        let deadline = tokio::time::Instant::now() + PATIENCE / 6;
        let backend = Pd::new(patient);
        while tokio::time::Instant::now() < deadline {
            if backend.replicas().await.is_ok() {
                return true;
            }
            tokio::time::sleep(crate::testing::process::POLL).await;
        }
        false
    }

    /// `http://host:port`.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn config(&self) -> PdConfig {
        PdConfig { timeout: PATIENCE / 3, ..PdConfig::new([Endpoint::new(self.url.clone())]) }
    }
}
