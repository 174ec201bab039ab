//! What was said on the command line, as the API takes it; and whether it is meant.

use std::{
    collections::BTreeMap,
    io::{BufRead, IsTerminal, Write},
};

use server::view::DrainBody;

use crate::{
    cli::DrainArgs,
    failure::{Failure, Outcome},
};

/// Only what was said: what is omitted keeps its value in a drain that runs.
pub fn body(args: &DrainArgs) -> DrainBody {
    let said = |flag: bool| flag.then_some(true);
    let deadline = match args.deadline.no_deadline {
        true => Some("none".to_owned()),
        false => args.deadline.deadline.clone(),
    };
    DrainBody {
        deadline,
        force: said(args.deadline.force),
        ignore_system: said(args.ignore_system),
        ack_stateful: said(args.ack_stateful),
        include_stateful: said(args.include_stateful),
        then: args.then.clone(),
        back: args.back.clone(),
        message: args.message.clone(),
        meta: (!args.meta.is_empty()).then(|| args.meta.iter().cloned().collect()),
    }
}

/// Each key once: of two values for one label no node has both.
pub fn selector(args: &DrainArgs) -> Outcome<BTreeMap<String, String>> {
    let mut labels = BTreeMap::new();
    for (key, value) in &args.selector {
        if labels.insert(key.clone(), value.clone()).is_some_and(|before| before != *value) {
            return Err(Failure::usage(format!("--selector has two values for {key:?}; no node has both")));
        }
    }
    Ok(labels)
}

/// What interrupts service is asked for twice: here, or by `--yes`.
pub fn confirm(args: &DrainArgs, nodes: &str) -> Outcome {
    let mut warnings = Vec::new();
    if args.deadline.force {
        warnings.push(format!(
            "--force stops what runs on {nodes} without waiting for replacements: services may be short or down until they are up"
        ));
    }
    if args.include_stateful {
        warnings.push(format!(
            "--include-stateful stops stateful instances on {nodes}: their volumes stay there, and they are down until it is back"
        ));
    }
    if warnings.is_empty() || args.yes {
        return Ok(());
    }
    let warning = warnings.join("\n");
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(Failure::usage(format!(
            "{warning}; there is no terminal to ask on, so say it with --yes"
        )));
    }
    let mut stderr = std::io::stderr();
    let _ = write!(stderr, "{warning}\nGo on? [y/N] ");
    let _ = stderr.flush();
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    match (read, answer.trim().to_lowercase().as_str()) {
        (Ok(_), "y" | "yes") => Ok(()),
        _ => Err(Failure::error("not confirmed; nothing was changed")),
    }
}
