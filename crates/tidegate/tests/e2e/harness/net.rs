//! A network of namespaces: a router, and behind it one namespace per daemon, each of which can be cut off.
//! The machine itself is on it too, with an address that databases can listen at.
//!
//! A shell makes it and removes it, when its input ends: also when the test process is killed.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::Ipv4Addr,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

/// `$0` is the name that all its parts begin with, `$1` how its addresses begin, `$2` how many namespaces.
const MAKE: &str = r#"
set -e
names=$0-hub
for n in $(seq 1 "$2"); do names="$names $0-$n"; done
clean() {
    ip link del "$0" || true
    for name in $names; do ip netns del "$name" || true; done
} 2>/dev/null
trap clean EXIT
if ip -4 route show | grep -q "$1\."; then echo "$1.0 is in use" >&2; exit 1; fi
ip netns add "$0-hub"
ip netns exec "$0-hub" sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'
ip link add "$0" type veth peer name host netns "$0-hub"
ip -n "$0-hub" addr add "$1.1/30" dev host
ip addr add "$1.2/30" dev "$0"
ip -n "$0-hub" link set host up
ip link set "$0" up
ip route add "$1.0/24" via "$1.1"
for n in $(seq 1 "$2"); do
    hub=$((4 * n + 1)) node=$((4 * n + 2))
    ip netns add "$0-$n"
    ip -n "$0-hub" link add "n$n" type veth peer name eth netns "$0-$n"
    ip -n "$0-hub" addr add "$1.$hub/30" dev "n$n"
    ip -n "$0-$n" addr add "$1.$node/30" dev eth
    ip -n "$0-hub" link set "n$n" up
    ip -n "$0-$n" link set eth up
    ip -n "$0-$n" link set lo up
    ip -n "$0-$n" route add default via "$1.$hub"
done
echo ready
read -r _ || true
"#;

/// Nobody has it: what is sent there arrives nowhere, and nobody is told.
const NOBODY: &str = "02:00:00:00:00:01";
/// Networks that are tried: others on this machine may have theirs.
const TRIES: u32 = 8;

/// Where a daemon lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub namespace: String,
    pub addr: Ipv4Addr,
}

/// What is lost on the way. Packets that are not lost still arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    Both,
    ToNode,
    FromNode,
}

pub struct Net {
    name: String,
    /// The first two octets are those that are set aside for such tests.
    third: (u8, u8),
    maker: Child,
}

impl Net {
    /// `Err` where this user or this machine cannot have namespaces.
    pub fn make(nodes: u8) -> Result<Net, String> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let mut last = String::new();
        for _ in 0..TRIES {
            let (pid, number) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
            let net = (pid + number) % 512;
            let name = format!("tg{pid}{}", (b'a' + (number % 26) as u8) as char);
            match Net::try_make(name, (18 + (net / 256) as u8, (net % 256) as u8), nodes) {
                Ok(net) => return Ok(net),
                Err(why) => last = why,
            }
        }
        Err(last)
    }

    fn try_make(name: String, third: (u8, u8), nodes: u8) -> Result<Net, String> {
        let mut command = Command::new("sh");
        command.args(["-c", MAKE, &name, &format!("198.{}.{}", third.0, third.1), &nodes.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut maker = command.spawn().map_err(|error| format!("no shell: {error}"))?;
        let mut line = String::new();
        let said = BufReader::new(maker.stdout.take().expect("piped")).read_line(&mut line);
        if said.is_ok() && line == "ready\n" {
            return Ok(Net { name, third, maker });
        }
        drop(maker.stdin.take());
        let mut why = String::new();
        let _ = maker.stderr.take().expect("piped").read_to_string(&mut why);
        let _ = maker.wait();
        Err(why.trim().to_owned())
    }

    fn addr(&self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(198, self.third.0, self.third.1, last)
    }

    /// This machine's own address, which every daemon reaches.
    pub fn host(&self) -> Ipv4Addr {
        self.addr(2)
    }

    /// Of the daemon with this number, from 1.
    pub fn place(&self, number: u8) -> Place {
        Place { namespace: format!("{}-{number}", self.name), addr: self.addr(4 * number + 2) }
    }

    pub fn cut(&self, number: u8, cut: Cut) {
        let entry = |change: &[&'static str]| change.iter().map(ToString::to_string).collect::<Vec<_>>();
        let lost = entry(&["lladdr", NOBODY, "nud", "permanent"]);
        if cut != Cut::FromNode {
            self.neighbour(true, number, "replace", &lost);
        }
        if cut != Cut::ToNode {
            self.neighbour(false, number, "replace", &lost);
        }
    }

    /// Undoes [`Net::cut`]; nothing if it was not cut.
    pub fn mend(&self, number: u8) {
        self.neighbour(true, number, "del", &[]);
        self.neighbour(false, number, "del", &[]);
    }

    /// What the router thinks of the node, or the node of the router.
    fn neighbour(&self, router: bool, number: u8, change: &str, more: &[String]) {
        let (space, addr, device) = match router {
            true => (format!("{}-hub", self.name), 4 * number + 2, format!("n{number}")),
            false => (format!("{}-{number}", self.name), 4 * number + 1, "eth".to_owned()),
        };
        let addr = self.addr(addr).to_string();
        let mut command = Command::new("ip");
        command.args(["-n", &space, "neigh", change, &addr]).args(more).args(["dev", &device]);
        let done = command.output().expect("it made the network");
        let is_gone = change == "del";
        assert!(done.status.success() || is_gone, "{}", String::from_utf8_lossy(&done.stderr));
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        drop(self.maker.stdin.take());
        let _ = self.maker.wait();
    }
}

/// Says what was left out where nobody can overlook it: not only when the test fails.
pub fn say_loudly(what: &str) {
    let _ = writeln!(std::io::stderr(), "\n!!! {what}\n");
}
