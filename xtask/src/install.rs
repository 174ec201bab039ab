//! What the tests need beside Rust, installed through the system's package manager where missing.
//!
//! The tests start servers of their own, on ports that are free: the programs are wanted, not the services that
//! packages set up.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::run;

pub fn etcd() -> anyhow::Result<()> {
    let calls: Installers = [
        ("apt-get", &[&["update", "-q"], &["install", "-y", "-q", "--no-install-recommends", "etcd-server"]]),
        ("dnf", &[&["install", "-y", "etcd"]]),
        ("apk", &[&["add", "etcd"]]),
    ];
    installed("etcd", "an etcd 3.4 or newer on the PATH", calls, || works("etcd", "--version"))
}

pub fn postgresql() -> anyhow::Result<()> {
    let calls: Installers = [
        ("apt-get", &[&["update", "-q"], &["install", "-y", "-q", "--no-install-recommends", "postgresql"]]),
        ("dnf", &[&["install", "-y", "postgresql-server"]]),
        ("apk", &[&["add", "postgresql", "setpriv"]]),
    ];
    installed("PostgreSQL", "the programs of a PostgreSQL 15 or newer on the PATH", calls, || {
        works("initdb", "--version") || debian_has("initdb")
    })
}

/// The server, and `redis-cli`, which the bench compares with.
pub fn redis() -> anyhow::Result<()> {
    let calls: Installers = [
        (
            "apt-get",
            &[
                &["update", "-q"],
                &["install", "-y", "-q", "--no-install-recommends", "redis-server", "redis-tools"],
            ],
        ),
        ("dnf", &[&["install", "-y", "redis"]]),
        ("apk", &[&["add", "redis"]]),
    ];
    installed("Redis", "redis-server and redis-cli 7 on the PATH", calls, || {
        works("redis-server", "--version") && works("redis-cli", "--version")
    })
}

/// What the example of a feed's command is written in.
pub fn python() -> anyhow::Result<()> {
    let calls: Installers = [
        ("apt-get", &[&["update", "-q"], &["install", "-y", "-q", "--no-install-recommends", "python3"]]),
        ("dnf", &[&["install", "-y", "python3"]]),
        ("apk", &[&["add", "python3"]]),
    ];
    installed("Python", "a python3 on the PATH", calls, || works("python3", "--version"))
}

/// PD's tags are no valid versions in Go's registry; it has those commits that some module asks for, by their full
/// pseudo-versions. This one is of April 2024, between v8.0 and v8.1: no later one is there.
const PD: &str = "github.com/tikv/pd@v1.1.0-beta.0.20240407022249-7179657d129b";
/// What that PD says it needs.
const PD_NEEDS_GO: [u32; 3] = [1, 21, 0];

/// A PD server in the target folder, once. Where it cannot be had the tests that need it say so, and pass.
pub fn pd() {
    let tools = run::target().join("tools");
    if tools.join("pd-server").exists() || works("pd-server", "-V") {
        return;
    }
    if let Err(reason) = build_pd(&tools) {
        println!(
            "\n!! PD IS NOT TESTED: there is no pd-server, and it cannot be installed:\n!! {reason:#}\n"
        );
    }
}

fn build_pd(tools: &Path) -> anyhow::Result<()> {
    let version = go(Path::new("/"), &["env", "GOVERSION"]).context("Go is not installed")?;
    let numbers = numbers(version.trim_start_matches("go"));
    if numbers < PD_NEEDS_GO {
        bail!("Go is too old: {version}, and {PD_NEEDS_GO:?} is needed");
    }
    println!("pd-server is not installed; building it with {version}, which takes minutes");
    fs::create_dir_all(tools).with_context(|| format!("cannot make {}", tools.display()))?;
    // `go install` would ask for a list of versions, which the registry does not have: built from the module's own folder.
    go(tools, &["mod", "download", PD])?;
    let cache = go(tools, &["env", "GOMODCACHE"])?;
    let made = tools.canonicalize()?.join("pd-server.part");
    let made_text = made.to_str().context("the target folder has no plain name")?;
    let build = ["build", "-tags", "without_dashboard", "-o", made_text, "./cmd/pd-server"];
    go(&Path::new(&cache).join(PD), &build)?;
    // by its name it is whole
    fs::rename(&made, tools.join("pd-server")).context("cannot name it pd-server")
}

/// What `go` says to this, in that folder.
fn go(folder: &Path, args: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new("go");
    command.args(args).current_dir(folder).env("CGO_ENABLED", "0").env("GOTOOLCHAIN", "local");
    let output = command.output().context("cannot run go")?;
    if !output.status.success() {
        bail!("go {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// What asks the API for everything that its document allows, and for what it does not.
const SCHEMATHESIS: &str = "schemathesis==4.32.5";

/// In an environment of its own in the target folder, once. Where it cannot be had the tests that need it say so, and
/// pass.
pub fn schemathesis() {
    let home = run::target().join("tools/schemathesis");
    if home.join("bin/schemathesis").exists() || works("schemathesis", "--version") {
        return;
    }
    println!("{SCHEMATHESIS} is not installed; installing it into {}", home.display());
    if let Err(reason) = install_schemathesis(&home) {
        println!("\n!! THE API'S DOCUMENT IS NOT TRIED: schemathesis cannot be installed:\n!! {reason:#}\n");
    }
}

fn install_schemathesis(home: &Path) -> anyhow::Result<()> {
    let said = |program: &Path, args: &[&str]| -> anyhow::Result<()> {
        let output = Command::new(program).args(args).output();
        let output = output.with_context(|| format!("cannot run {}", program.display()))?;
        if !output.status.success() {
            bail!(
                "{} {}: {}",
                program.display(),
                args.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(())
    };
    let place = home.display().to_string();
    said(Path::new("python3"), &["-m", "venv", &place])?;
    said(&home.join("bin/pip"), &["install", "--quiet", "--disable-pip-version-check", SCHEMATHESIS])
}

/// `1.26.8` as numbers; what is missing or no number counts as zero.
fn numbers(version: &str) -> [u32; 3] {
    let digits = |part: &str| part.chars().take_while(char::is_ascii_digit).collect::<String>();
    let mut parts = version.split('.').map(|part| digits(part).parse().unwrap_or(0));
    [(); 3].map(|()| parts.next().unwrap_or(0))
}

/// Per package manager, its calls.
type Installers<'a> = [(&'a str, &'a [&'a [&'a str]]); 3];

fn installed(
    what: &str,
    otherwise: &str,
    installers: Installers<'_>,
    there: impl Fn() -> bool,
) -> anyhow::Result<()> {
    if there() {
        return Ok(());
    }
    println!("{what} is not installed; installing the system's package");
    for (program, calls) in installers {
        if !works(program, "--version") {
            continue;
        }
        let _policy = NoServices::declare(program)?;
        for args in calls {
            run::run(program, args)?;
        }
        if there() {
            return Ok(());
        }
    }
    bail!("{what} could not be installed: put {otherwise} and run this again")
}

/// Debian's packages ask this program before they start a service; 101 means no.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// While it lives, packages of Debian start no services. One who has a policy already keeps it.
struct NoServices {
    ours: bool,
}

impl NoServices {
    fn declare(manager: &str) -> anyhow::Result<NoServices> {
        if manager != "apt-get" || Path::new(POLICY).exists() {
            return Ok(NoServices { ours: false });
        }
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o755).open(POLICY);
        file.and_then(|mut file| file.write_all(b"#!/bin/sh\nexit 101\n"))
            .with_context(|| format!("cannot write {POLICY}, without which packages start their services"))?;
        Ok(NoServices { ours: true })
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.ours
            && let Err(fault) = fs::remove_file(POLICY)
        {
            eprintln!("xtask: {POLICY} is left behind, and keeps services from being started: {fault}");
        }
    }
}

/// Debian keeps the server's programs apart from the PATH, one directory per version.
fn debian_has(program: &str) -> bool {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    versions.into_iter().any(|version| version.path().join("bin").join(program).exists())
}

fn works(program: &str, arg: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(arg).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
