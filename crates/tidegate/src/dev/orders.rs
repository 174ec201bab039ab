//! The demo's feed: orders that a service writes to logs, copied to files, in directories that all nodes of
//! this machine see. Written here and not in `examples/`, because a feed's paths are absolute.

use std::{fs, path::Path};

use model::spec::file::SpecFile;
use toml::Value;

use crate::{
    failure::{Failure, Outcome},
    service_file,
};

/// Makes the directories and the file that describes service and feed, and gives what the file holds.
pub fn write(dev: &Path) -> Outcome<SpecFile> {
    let (logs, copies) = (dev.join("orders/logs"), dev.join("orders/copies"));
    for dir in [&logs, &copies] {
        fs::create_dir_all(dir).map_err(|error| failed("make", dir, &error))?;
    }
    // They are there before the feed looks for them: a feed that finds none looks again only after a while.
    crate::demo::order_logs(&logs).map_err(|error| Failure::error(format!("{error:#}")))?;
    let (path, text) = (dev.join("etc/orders.toml"), text(&logs, &copies));
    fs::write(&path, &text).map_err(|error| failed("write", &path, &error))?;
    service_file::check_text(&path.display().to_string(), &text)
}

fn failed(doing: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::error(format!("cannot {doing} {}: {error}", path.display()))
}

fn text(logs: &Path, copies: &Path) -> String {
    let quoted = |path: &Path| Value::String(path.display().to_string()).to_string();
    let (logs, copies) = (quoted(logs), quoted(copies));
    format!(
        "# Written by `tidegate dev --demo`. The keys are explained in docs/service-file.md and docs/feeds-log.md.

# Writes an order to one of four logs every 200 ms.
[[service]]
name    = \"shop\"
command = [\"tidegate\", \"demo\", \"orders\", \"--dir\", {logs}]
memory  = \"32MiB\"
migrate = {{ min_healthy_time = \"1s\" }}

# Copies them, a dispatcher per log, spread over the nodes.
# Try:   tidegate feed status orders        tidegate node drain node-1 --ack-stateful
[[feed]]
name   = \"orders\"
source = {{ kind = \"log\", path = {logs} }}
sink   = {{ kind = \"file\", path = {copies} }}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_the_demos_feed_can_be_applied_by_hand_whatever_its_directory_is_called() {
        let dir = tempfile::tempdir().unwrap();
        let dev = dir.path().join("it's a \"dir\"");
        fs::create_dir_all(dev.join("etc")).unwrap();
        let written = write(&dev).unwrap();
        let read = service_file::load(&[dev.join("etc/orders.toml")]).unwrap();
        assert_eq!(read.feed, written.feed);
        assert_eq!((read.service[0].name.as_str(), read.feed[0].name.as_str()), ("shop", "orders"));
        assert!(write(&dev).is_ok(), "once more over the same directory");
    }
}
