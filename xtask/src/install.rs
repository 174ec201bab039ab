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
