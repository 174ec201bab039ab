//! What the tests need beside Rust, installed through the system's package manager where missing.

use std::process::{Command, Stdio};

use anyhow::bail;

use crate::run;

pub fn etcd() -> anyhow::Result<()> {
    let installers: [(&str, &[&[&str]]); 3] = [
        ("apt-get", &[&["update", "-q"], &["install", "-y", "-q", "--no-install-recommends", "etcd-server"]]),
        ("dnf", &[&["install", "-y", "etcd"]]),
        ("apk", &[&["add", "etcd"]]),
    ];
    install("etcd", "the system's package etcd-server", &installers)?;
    if works("etcd", "--version") {
        return Ok(());
    }
    bail!("etcd could not be installed: put an etcd 3.4 or newer on the PATH and run this again")
}

/// The server, and `redis-cli`, which the example `reshard` is compared with.
pub fn redis() -> anyhow::Result<()> {
    let installers: [(&str, &[&[&str]]); 3] = [
        (
            "apt-get",
            &[&["update", "-q"], &["install", "-y", "-q", "--no-install-recommends", "redis-server"]],
        ),
        ("dnf", &[&["install", "-y", "redis"]]),
        ("apk", &[&["add", "redis"]]),
    ];
    install("redis-server", "the system's package redis-server", &installers)?;
    if works("redis-server", "--version") {
        return Ok(());
    }
    bail!("Redis could not be installed: put a redis-server 7 on the PATH and run this again")
}

/// Through the first package manager that there is and that brings it; nothing where it is there already.
fn install(program: &str, package: &str, installers: &[(&str, &[&[&str]])]) -> anyhow::Result<()> {
    if works(program, "--version") {
        return Ok(());
    }
    println!("{program} is not installed; installing {package}");
    for (manager, calls) in installers {
        if !works(manager, "--version") {
            continue;
        }
        for args in *calls {
            run::run(manager, args)?;
        }
        if works(program, "--version") {
            return Ok(());
        }
    }
    Ok(())
}

fn works(program: &str, arg: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(arg).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
