//! What the tests need beside Rust, installed through the system's package manager where missing.

use std::process::{Command, Stdio};

use anyhow::bail;

use crate::run;

pub fn etcd() -> anyhow::Result<()> {
    if works("etcd", "--version") {
        return Ok(());
    }
    println!("etcd is not installed; installing the system's package etcd-server");
    let installers: [(&str, &[&[&str]]); 3] = [
        ("apt-get", &[&["update", "-q"], &["install", "-y", "-q", "--no-install-recommends", "etcd-server"]]),
        ("dnf", &[&["install", "-y", "etcd"]]),
        ("apk", &[&["add", "etcd"]]),
    ];
    for (program, calls) in installers {
        if !works(program, "--version") {
            continue;
        }
        for args in calls {
            run::run(program, args)?;
        }
        if works("etcd", "--version") {
            return Ok(());
        }
    }
    bail!("etcd could not be installed: put an etcd 3.4 or newer on the PATH and run this again")
}

fn works(program: &str, arg: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(arg).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
