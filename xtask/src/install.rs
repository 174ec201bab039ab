//! What the tests need beside Rust, installed through the system's package manager where missing.

use std::process::{Command, Stdio};

use anyhow::bail;

use crate::run;

pub fn etcd() -> anyhow::Result<()> {
    let calls: Installers = [
        ("apt-get", &[&["update", "-q"], &["install", "-y", "-q", "--no-install-recommends", "etcd-server"]]),
        ("dnf", &[&["install", "-y", "etcd"]]),
        ("apk", &[&["add", "etcd"]]),
    ];
    installed("etcd", "an etcd 3.4 or newer on the PATH", calls, || works("etcd", "--version"))
}

/// The server's programs; the tests start servers of their own, the system's is not touched.
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
        for args in calls {
            run::run(program, args)?;
        }
        if there() {
            return Ok(());
        }
    }
    bail!("{what} could not be installed: put {otherwise} and run this again")
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
