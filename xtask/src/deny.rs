//! What `deny.toml` says of licences, sources and crates, held against what Cargo would build.
//!
//! *Not here:* advisories, which need a database that others keep up.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::Command,
};

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::run::root;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Rules {
    graph: Graph,
    licenses: Licenses,
    sources: Sources,
    bans: Bans,
}

#[derive(Deserialize)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Deserialize)]
struct Licenses {
    allow: BTreeSet<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Named>,
    skip: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    /// None: ours.
    source: Option<String>,
}

pub fn check() -> anyhow::Result<()> {
    let text = fs::read_to_string(root().join("deny.toml")).context("deny.toml")?;
    let rules: Rules = toml::from_str(&text).context("deny.toml")?;
    let packages = packages(&rules)?;
    let mut faults = Vec::new();
    for package in &packages {
        judge(&rules, package, &mut faults);
    }
    versions(&rules, &packages, &mut faults);
    for fault in &faults {
        eprintln!("{fault}");
    }
    if !faults.is_empty() {
        bail!("{} faults by deny.toml", faults.len());
    }
    println!("{} crates are as deny.toml allows (advisories are not looked at)", packages.len());
    Ok(())
}

/// What is built for any of the targets.
fn packages(rules: &Rules) -> anyhow::Result<Vec<Package>> {
    let mut command = Command::new("cargo");
    command.args(["metadata", "--format-version", "1", "--locked"]).current_dir(root());
    for target in &rules.graph.targets {
        command.args(["--filter-platform", target]);
    }
    let output = command.output().context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let used: BTreeSet<&str> = metadata.resolve.nodes.iter().map(|node| node.id.as_str()).collect();
    Ok(metadata.packages.into_iter().filter(|package| used.contains(package.id.as_str())).collect())
}

fn judge(rules: &Rules, package: &Package, faults: &mut Vec<String>) {
    let Package { name, version, license, source, .. } = package;
    if let Some(source) = source {
        let known = |registry: &String| source == &format!("registry+{registry}");
        if !rules.sources.allow_registry.iter().any(known) {
            faults.push(format!("{name} {version}: comes from {source}"));
        }
    }
    match license {
        None => faults.push(format!("{name} {version}: names no licence")),
        Some(license) if !is_allowed(license, &rules.licenses.allow) => {
            faults.push(format!("{name} {version}: {license} is not allowed"));
        }
        Some(_) => {}
    }
    if let Some(banned) = rules.bans.deny.iter().find(|banned| banned.name == *name) {
        faults.push(format!("{name} {version}: banned: {}", banned.reason));
    }
}

fn versions(rules: &Rules, packages: &[Package], faults: &mut Vec<String>) {
    let mut all: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        all.entry(&package.name).or_default().insert(&package.version);
    }
    let skipped: BTreeSet<&str> = rules.bans.skip.iter().map(|skip| skip.name.as_str()).collect();
    for (name, versions) in &all {
        if versions.len() > 1 && !skipped.contains(name) {
            let versions: Vec<&str> = versions.iter().copied().collect();
            faults.push(format!("{name}: several versions: {}", versions.join(", ")));
        }
    }
    for name in skipped {
        if all.get(name).is_none_or(|versions| versions.len() < 2) {
            faults.push(format!("deny.toml: bans.skip: {name} has one version: leave it out"));
        }
    }
}

/// Whether a licence expression holds with these alone. `/` is how `OR` was written once.
fn is_allowed(expression: &str, allow: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let holds = any_of(&words, &mut at, allow);
    holds && at == words.len()
}

fn any_of(words: &[&str], at: &mut usize, allow: &BTreeSet<String>) -> bool {
    let mut holds = all_of(words, at, allow);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        holds |= all_of(words, at, allow);
    }
    holds
}

fn all_of(words: &[&str], at: &mut usize, allow: &BTreeSet<String>) -> bool {
    let mut holds = one(words, at, allow);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        holds &= one(words, at, allow);
    }
    holds
}

fn one(words: &[&str], at: &mut usize, allow: &BTreeSet<String>) -> bool {
    let word = words.get(*at).copied().unwrap_or_default();
    *at += 1;
    if word == "(" {
        let holds = any_of(words, at, allow);
        *at += usize::from(words.get(*at) == Some(&")"));
        return holds;
    }
    // An exception allows more than its licence does.
    if words.get(*at) == Some(&"WITH") {
        *at += 2;
    }
    allow.contains(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_licence_is_allowed_if_what_is_allowed_is_enough_for_it() {
        let allow: BTreeSet<String> = ["MIT", "Apache-2.0", "ISC"].map(str::to_owned).into();
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "(GPL-3.0 OR MIT) AND ISC",
            "Apache-2.0 WITH LLVM-exception",
            "Apache-2.0 AND ISC",
        ] {
            assert!(is_allowed(good, &allow), "{good}");
        }
        for bad in
            ["", "GPL-3.0", "MIT AND GPL-3.0", "(GPL-3.0 OR LGPL-3.0) AND MIT", "MIT)", "MIT MIT", "AND"]
        {
            assert!(!is_allowed(bad, &allow), "{bad}");
        }
    }
}
