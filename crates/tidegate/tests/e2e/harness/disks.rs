//! Small file systems of their own for the data of daemons, so that one can be filled without harm to others.
//!
//! A shell makes them and removes them, when its input ends: also when the test process is killed.

use std::{
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

/// `$0` is the directory, `$1` how many. Loop devices where there are some, else memory.
const MAKE: &str = r#"
clean() { for n in $(seq 1 "$1"); do umount "$0/$n" || umount -l "$0/$n"; done; } 2>/dev/null
trap 'clean "$1"' EXIT
for n in $(seq 1 "$1"); do
    mkdir "$0/$n" && truncate -s 64M "$0/$n.img" || exit 1
    kind=loop
    { mkfs.ext4 -q -m 0 "$0/$n.img" && mount -o loop "$0/$n.img" "$0/$n"; } 2>/dev/null || {
        kind=tmpfs
        mount -t tmpfs -o size=64m tidegate "$0/$n" || exit 1
    }
done
echo "$kind"
read -r _ || true
"#;

pub struct Disks {
    dir: TempDir,
    pub kind: String,
    maker: Child,
}

impl Disks {
    /// `Err` where this user may mount nothing.
    pub fn make(count: usize) -> Result<Disks, String> {
        let dir = tempfile::Builder::new().prefix("tidegate-disks-").tempdir().expect("a directory");
        let mut command = Command::new("sh");
        command.args(["-c", MAKE]).arg(dir.path()).arg(count.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut maker = command.spawn().map_err(|error| format!("no shell: {error}"))?;
        let mut line = String::new();
        let said = BufReader::new(maker.stdout.take().expect("piped")).read_line(&mut line);
        if said.is_ok() && !line.is_empty() {
            return Ok(Disks { dir, kind: line.trim().to_owned(), maker });
        }
        drop(maker.stdin.take());
        let mut why = String::new();
        let _ = maker.stderr.take().expect("piped").read_to_string(&mut why);
        let _ = maker.wait();
        Err(why.trim().to_owned())
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn at(&self, number: usize) -> PathBuf {
        self.dir.path().join(number.to_string())
    }

    /// For the data of the daemon with this number, from 1.
    pub fn data(&self, number: usize) -> PathBuf {
        self.at(number).join("data")
    }

    /// Leaves no room at all.
    pub fn fill(&self, number: usize) {
        let mut ballast = File::create(self.at(number).join("ballast")).expect("a file on our own disk");
        for size in [1 << 20, 4096, 1] {
            let bytes = vec![0xa5; size];
            while ballast.write_all(&bytes).is_ok() {}
        }
        let _ = ballast.sync_all();
    }

    pub fn is_full(&self, number: usize) -> bool {
        let probe = self.at(number).join("probe");
        let file = OpenOptions::new().create(true).write(true).truncate(true).open(&probe);
        let written = file.and_then(|mut file| file.write_all(&[1; 64 << 10]).and_then(|()| file.sync_all()));
        let _ = std::fs::remove_file(probe);
        written.is_err()
    }

    pub fn free(&self, number: usize) {
        let _ = std::fs::remove_file(self.at(number).join("ballast"));
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        drop(self.maker.stdin.take());
        let _ = self.maker.wait();
    }
}
