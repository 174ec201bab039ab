//! Running other programs, and saying so.

use std::process::Command;

use anyhow::{Context, bail};

pub fn heading(name: &str) {
    println!("\n== {name}");
}

/// Runs one step under its heading.
pub fn step(name: &str, program: &str, args: &[&str]) -> anyhow::Result<()> {
    heading(name);
    run(program, args)
}

pub fn cargo(args: &[&str]) -> anyhow::Result<()> {
    run("cargo", args)
}

pub fn run(program: &str, args: &[&str]) -> anyhow::Result<()> {
    let status = Command::new(program)
        .args(args)
        .current_dir(root())
        .status()
        .with_context(|| format!("cannot run {program}"))?;
    if !status.success() {
        bail!("{program} {} failed ({status})", args.join(" "));
    }
    Ok(())
}

/// The top of the checkout.
pub fn root() -> std::path::PathBuf {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// Where cargo puts what it makes.
pub fn target() -> std::path::PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), std::path::PathBuf::from)
}
