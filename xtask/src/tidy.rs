//! The rules of the house that a compiler does not know.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};

use crate::run::root;

const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 70;

/// The crates in which the same inputs give the same outputs, byte for byte.
const PURE: [&str; 4] = ["model", "planner", "checker", "protocol"];
/// What would let the outside into them.
const IMPURE: [&str; 14] = [
    "Instant::now",
    "SystemTime",
    "tokio::",
    "std::fs",
    "std::net",
    "std::thread",
    "std::process",
    "std::env",
    "rand::",
    "HashMap",
    "HashSet",
    "async fn",
    "println!",
    "static mut",
];
/// Arrows point up this list only.
const ORDER: [&str; 17] = [
    "model",
    "planner",
    "checker",
    "protocol",
    "doors",
    "store",
    "wire",
    "backends",
    "pipelines",
    "server",
    "worker",
    "edge",
    "sim",
    "exhaustive",
    "hostile",
    "tidegate",
    "bench",
];
/// The only files with `unsafe` in them: calls of the kernel that no library has. Their crates deny it elsewhere; all
/// others forbid it.
const UNSAFE: [&str; 2] = ["crates/pipelines/src/sys.rs", "crates/worker/src/sys.rs"];
/// Written in parts, so that this list is not taken for one of them.
const ALLOWS: &str = concat!("allow(", "unsafe_code)");
/// What a library must not pass on from outside as a panic.
/// Written in parts, so that this list is not taken for one of them.
const UNFINISHED: [&str; 3] =
    [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("#[", "ignore")];

pub fn check() -> anyhow::Result<()> {
    let mut faults = Vec::new();
    let mut files = 0;
    for krate in fs::read_dir(root().join("crates"))? {
        let krate = krate?.path();
        let name = krate.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        arrows(&krate, &name, &mut faults)?;
        opening(&krate, &mut faults)?;
        for file in rust_files(&krate)? {
            files += 1;
            let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            let shown = file.strip_prefix(root()).unwrap_or(&file).display().to_string();
            look(&name, &shown, &text, &mut faults);
        }
    }
    for fault in &faults {
        eprintln!("{fault}");
    }
    if !faults.is_empty() {
        bail!("{} places are not tidy", faults.len());
    }
    println!("{files} files are tidy");
    Ok(())
}

fn look(krate: &str, file: &str, text: &str, faults: &mut Vec<String>) {
    for (at, line) in text.lines().enumerate() {
        for word in UNFINISHED {
            if line.contains(word) {
                faults.push(format!("{file}:{}: {word} is left", at + 1));
            }
        }
    }
    if text.contains(ALLOWS) && !UNSAFE.contains(&file) {
        faults.push(format!("{file}: unsafe code stands in {} alone", UNSAFE.join(" and ")));
    }
    if file.contains("/tests/") || file.ends_with("tests.rs") || file.contains("/examples/") {
        return;
    }
    // Tests stand at the end of a file and are apart from its size.
    let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let lines: Vec<&str> = code.lines().collect();
    if lines.len() > FILE_LINES_MAX {
        faults.push(format!("{file}: {} lines are two concerns (at most {FILE_LINES_MAX})", lines.len()));
    }
    functions(file, &lines, faults);
    if PURE.contains(&krate) {
        for (at, line) in lines.iter().enumerate() {
            let line = line.trim_start();
            let code = line.split("//").next().unwrap_or(line);
            for word in IMPURE.iter().filter(|word| code.contains(**word)) {
                faults.push(format!("{file}:{}: {word} in a pure crate", at + 1));
            }
        }
    }
}

/// Counts on rustfmt: a function ends at the first closing brace with the indentation of its `fn`.
fn functions(file: &str, lines: &[&str], faults: &mut Vec<String>) {
    for (at, line) in lines.iter().enumerate() {
        let body = line.trim_start();
        let indent = line.len() - body.len();
        if !is_function(body) {
            continue;
        }
        let end = lines[at..].iter().position(|line| {
            line.len() - line.trim_start().len() == indent && line.trim_start().starts_with('}')
        });
        let length = end.map_or(0, |end| end + 1);
        if length > FUNCTION_LINES_MAX {
            let name = body.split('(').next().unwrap_or(body);
            faults
                .push(format!("{file}:{}: {name} has {length} lines (at most {FUNCTION_LINES_MAX})", at + 1));
        }
    }
}

fn is_function(line: &str) -> bool {
    let mut rest = line;
    for prefix in ["pub(crate) ", "pub(super) ", "pub(in crate) ", "pub ", "const ", "async ", "unsafe "] {
        rest = rest.strip_prefix(prefix).unwrap_or(rest);
    }
    rest.starts_with("fn ") && !line.trim_end().ends_with(';')
}

fn arrows(krate: &Path, name: &str, faults: &mut Vec<String>) -> anyhow::Result<()> {
    let Some(place) = ORDER.iter().position(|known| *known == name) else {
        faults.push(format!("crates/{name}: not in the list of the house (xtask/src/tidy.rs)"));
        return Ok(());
    };
    let manifest = fs::read_to_string(krate.join("Cargo.toml"))?;
    let normal = manifest.split("[dev-dependencies]").next().unwrap_or(&manifest);
    for line in normal.lines() {
        let used = line.split(['.', ' ', '=']).next().unwrap_or_default();
        if ORDER.iter().position(|known| *known == used).is_some_and(|other| other >= place) {
            faults.push(format!("crates/{name}/Cargo.toml: {name} must not know {used}"));
        }
    }
    Ok(())
}

fn opening(krate: &Path, faults: &mut Vec<String>) -> anyhow::Result<()> {
    let lib = krate.join("src/lib.rs");
    if !lib.is_file() {
        return Ok(());
    }
    let text = fs::read_to_string(&lib)?;
    let doc: String = text.lines().take_while(|line| line.starts_with("//!")).collect();
    if !doc.contains("*Invariant:*") {
        let shown = lib.strip_prefix(root()).unwrap_or(&lib).display();
        faults.push(format!("{shown}: opens without an *Invariant:* line"));
    }
    let shown = lib.strip_prefix(root()).unwrap_or(&lib).display().to_string();
    let excepted = UNSAFE.iter().any(|file| file.strip_suffix("sys.rs") == shown.strip_suffix("lib.rs"));
    if !excepted && !text.contains("#![forbid(unsafe_code)]") {
        faults.push(format!("{shown}: does not forbid unsafe code"));
    }
    Ok(())
}

fn rust_files(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("target") {
            found.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(found)
}
