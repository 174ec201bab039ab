//! Real processes under real shims.
//!
//! A test binary without libtest's harness, because it is also the shim: the runtime starts
//! `<this binary> shims ROOT`, which forks them, so the tests need no other artefact, whatever cargo was asked to build.

#![allow(clippy::unwrap_used)]

mod adoption;
mod control;
mod life;
mod stage;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Tests wait for processes more than they compute.
const THREADS: usize = 4;

type Test = (&'static str, fn());

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [word, dir] = arguments.as_slice()
        && word == "shim"
    {
        std::process::exit(worker::shim::shim_main(Path::new(dir)));
    }
    if let [word, _root] = arguments.as_slice()
        && word == "shims"
    {
        std::process::exit(worker::shim::nursery::nursery_main());
    }
    let tests: Vec<Test> = [life::TESTS, adoption::TESTS, control::TESTS].concat();
    let exact = arguments.iter().any(|a| a == "--exact");
    let ignored = arguments.iter().any(|a| a == "--ignored");
    let filters: Vec<&String> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    let chosen = |name: &str| {
        let fits = |f: &&String| if exact { name == f.as_str() } else { name.contains(f.as_str()) };
        !ignored && (filters.is_empty() || filters.iter().any(fits))
    };
    let tests: Vec<Test> = tests.into_iter().filter(|(name, _)| chosen(name)).collect();
    if arguments.iter().any(|a| a == "--list") {
        tests.iter().for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    std::process::exit(run(&tests));
}

fn run(tests: &[Test]) -> i32 {
    println!("\nrunning {} tests", tests.len());
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some((name, test)) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let began = std::time::Instant::now();
                    let passed = catch_unwind(AssertUnwindSafe(test)).is_ok();
                    let took = began.elapsed().as_millis();
                    println!("test {name} ... {} ({took} ms)", if passed { "ok" } else { "FAILED" });
                    if !passed {
                        failed.lock().unwrap().push(*name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    println!("\ntest result: {} passed; {} failed {failed:?}\n", tests.len() - failed.len(), failed.len());
    i32::from(!failed.is_empty())
}

/// `tests![a, b]` names the functions as libtest would.
#[macro_export]
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub const TESTS: &[(&str, fn())] =
            &[$((concat!(module_path!(), "::", stringify!($name)), $name as fn())),*];
    };
}
