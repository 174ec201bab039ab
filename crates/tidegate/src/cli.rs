//! The command line: what can be asked, and the texts that explain it.

use std::{ffi::OsString, net::SocketAddr, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};

#[derive(Debug, Parser)]
#[command(
    name = "tidegate",
    version,
    about = "Runs services on a cluster of machines, and empties a machine without anybody noticing",
    after_help = "Start here:\n  tidegate dev --demo          a cluster with something on it, on this machine\n  \
                  tidegate status              what runs, and what is wrong\n  tidegate apply web.toml      run a service\n\n\
                  Exit codes: 0 done, 1 error, 2 usage, 3 ended otherwise than asked, 4 refused."
)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Everywhere")]
pub struct Global {
    /// Where the cluster answers [default: http://127.0.0.1:7070]
    #[arg(long, global = true, env = "TIDEGATE_ADDR", value_name = "URL")]
    pub addr: Option<String>,
    /// Sent as a bearer token
    #[arg(long, global = true, env = "TIDEGATE_TOKEN", hide = true, hide_env_values = true)]
    pub token: Option<String>,
    /// A file that holds the token (or TIDEGATE_TOKEN, the token itself)
    #[arg(long, global = true, env = "TIDEGATE_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// The authority whose certificates are believed, for https
    #[arg(long, global = true, env = "TIDEGATE_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// A person's certificate, shown to the coordinator in place of a token
    #[arg(long, global = true, env = "TIDEGATE_CERT", value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// Its key
    #[arg(long, global = true, env = "TIDEGATE_KEY", value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Where addr, ca, cert, key and token_file are kept [default: ~/.config/tidegate/client.toml, if there]
    #[arg(long, global = true, env = "TIDEGATE_CLIENT", value_name = "FILE")]
    pub client: Option<PathBuf>,
    /// How data is printed: columns, the server's answer as it is, or more columns
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Table, value_name = "FORMAT")]
    pub output: Format,
}

impl Global {
    /// For a cluster on this machine that asks for nothing, whatever the environment says of others.
    pub fn plain(addr: String) -> Global {
        Global {
            addr: Some(addr),
            token: None,
            token_file: None,
            ca: None,
            cert: None,
            key: None,
            client: Some(PathBuf::from("/dev/null")),
            output: Format::Table,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Table,
    Json,
    Wide,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a cluster on this machine, for trying things out
    #[command(
        after_help = "Examples:\n  tidegate dev --demo\n  tidegate dev --nodes 5 --data /tmp/cluster\n  tidegate dev --ha            with a local etcd; every node may become coordinator\n\n\
                      Ctrl-C stops everything, instances too. The next `tidegate dev` with the same --data finds\nits services again."
    )]
    Dev(DevArgs),
    /// Run the daemon
    #[command(
        after_help = "Example:\n  tidegate run --config /etc/tidegate/node.toml\n\nSIGTERM or Ctrl-C stops the daemon; its instances run on and are found again."
    )]
    Run(RunArgs),
    /// Create or update services, feeds and store groups from files; does nothing where nothing changed
    #[command(
        after_help = "Examples:\n  tidegate apply web.toml db.toml\n  tidegate apply --wait web.toml\n  generate-services | tidegate apply -\n\n\
                      All files are checked before anything is sent. What a file may hold: docs/service-file.md."
    )]
    Apply(ApplyArgs),
    /// Stop a service's instances, a feed's dispatchers or a store group, and forget it
    #[command(
        after_help = "Examples:\n  tidegate remove service/web\n  tidegate remove feed/orders\n  tidegate remove store-group/kv --destroy-data"
    )]
    Remove {
        /// Like service/web, or just web
        #[arg(value_name = "KIND/NAME")]
        target: String,
        /// A store group only: with everything that its stores hold
        #[arg(long)]
        destroy_data: bool,
    },
    /// Show the cluster, or one thing in it
    #[command(
        after_help = "Examples:\n  tidegate status\n  tidegate status service/web\n  tidegate status node/node-1\n  tidegate status -o json | jq ."
    )]
    Status {
        /// Like service/web, feed/orders, store-group/kv, store/kv-0, node/node-1, instance/web-1k3f9a2, volume/db-data-0, drain/7, or just the name
        #[arg(value_name = "KIND/NAME")]
        target: Option<String>,
    },
    /// Nodes: the machines that run the daemon
    #[command(subcommand)]
    Node(NodeCommand),
    /// Drains: nodes being emptied, and those of the past
    #[command(subcommand)]
    Drain(DrainCommand),
    /// Instances: the runs of services on nodes
    #[command(subcommand)]
    Instance(InstanceCommand),
    /// Feeds: streams of work whose dispatchers run on nodes
    #[command(subcommand)]
    Feed(FeedCommand),
    /// Stores: members of replicated data stores
    #[command(subcommand)]
    Store(StoreCommand),
    /// Store groups: the stores of one data store
    #[command(subcommand)]
    StoreGroup(StoreGroupCommand),
    /// Volumes: directories of stateful services that outlive instances
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Change how many instances a service has, or how many stores a store group
    #[command(
        after_help = "Examples:\n  tidegate scale service/web 10\n  tidegate scale store-group/kv 3\n\n\
                      Stores that go are emptied first; until they are gone, scaling back up keeps them."
    )]
    Scale {
        /// Like service/web, or just web
        #[arg(value_name = "KIND/NAME")]
        target: String,
        /// 0 stops all and keeps the service
        #[arg(value_parser = clap::value_parser!(u32))]
        count: u32,
    },
    /// Show what happened
    #[command(
        after_help = "Examples:\n  tidegate events\n  tidegate events --follow\n  tidegate events --since 120 -o json     one JSON object a line"
    )]
    Events {
        /// Wait for what comes
        #[arg(short, long)]
        follow: bool,
        /// Only what came after the event with this number
        #[arg(long, value_name = "N")]
        since: Option<u64>,
    },
    /// Tokens: who may ask the cluster
    #[command(subcommand)]
    Token(TokenCommand),
    /// Show who changed what, when, from where
    #[command(after_help = "Examples:\n  tidegate audit\n  tidegate audit --limit 1000 -o json")]
    Audit {
        /// The last so many entries
        #[arg(long, default_value_t = 50, value_name = "N")]
        limit: u32,
    },
    /// Make certificates for daemons and people
    #[command(subcommand)]
    Tls(TlsCommand),
    /// Check the live state against the invariants
    #[command(after_help = "Exits with 3 if something is violated.")]
    Doctor,
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  tidegate completions bash > /etc/bash_completion.d/tidegate")]
    Completions { shell: clap_complete::Shell },
    /// Holds one instance; started by the daemon
    #[command(hide = true)]
    Shim { dir: PathBuf },
    /// Forks those that hold the instances below a directory; started by the daemon
    #[command(hide = true)]
    Shims { root: PathBuf },
    /// Holds the command of a feed; started by the daemon
    #[command(hide = true)]
    Guard {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Runs a command until standard input ends; how `dev` makes sure that nothing outlives it
    #[command(hide = true)]
    Leash {
        #[arg(trailing_var_arg = true, required = true)]
        command: Vec<String>,
    },
    /// What the demo runs
    #[command(hide = true, subcommand)]
    Demo(DemoCommand),
}

#[derive(Debug, Args)]
pub struct DevArgs {
    /// How many nodes run services
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=20))]
    pub nodes: u16,
    /// Where the API listens
    #[arg(long, default_value = "127.0.0.1:7070", value_name = "ADDR")]
    pub listen: SocketAddr,
    /// Where everything is kept
    #[arg(long, default_value = ".tidegate", value_name = "DIR")]
    pub data: PathBuf,
    /// Apply the demo services
    #[arg(long)]
    pub demo: bool,
    /// Give every node all roles, over a local etcd (found in PATH)
    #[arg(long)]
    pub ha: bool,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The daemon's configuration (TOML)
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Listen beyond this machine without TLS and tokens: whoever reaches the port runs commands here
    #[arg(long)]
    pub insecure: bool,
    /// Leave the cluster that this node remembers and join the configured one
    #[arg(long)]
    pub adopt: bool,
    /// What is logged to stderr: error, warn, info, debug, trace, or a filter as in RUST_LOG
    #[arg(long, env = "RUST_LOG", default_value = "info", value_name = "LEVEL")]
    pub log: String,
    /// Stop when standard input ends: how `dev` makes sure that nothing outlives it
    #[arg(long, hide = true)]
    pub until_stdin_ends: bool,
}

#[derive(Debug, Args)]
pub struct ApplyArgs {
    /// Service files (TOML); - is standard input
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Wait until all of it runs; exits with 3 if a release fails
    #[arg(long)]
    pub wait: bool,
}

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// All nodes
    List,
    /// One node and what runs there
    Status { node: String },
    /// Empty a node: everything on it runs elsewhere before it stops here
    #[command(
        after_help = "Examples:\n  tidegate node drain node-2 --plan        what would happen; changes nothing\n  \
                      tidegate node drain node-2 --message \"kernel update\"\n  \
                      tidegate node drain node-1 node-2 --then stop --detach\n  \
                      tidegate node drain --selector rack=r1 --no-deadline --ack-stateful\n\n\
                      Nothing new is placed on a node from the moment its drain is accepted. Said again of a node that\n\
                      drains, it changes the options that are named. Ctrl-C leaves; the drain goes on.\n\n\
                      Exit codes: 0 drained, 1 error, 2 usage, 3 ended otherwise (drained_except, cancelled, node_lost,\n\
                      failed, or the deadline was reached), 4 refused before anything was touched."
    )]
    Drain(DrainArgs),
    /// Take a node out of its drain: it takes work again
    Cancel { node: String },
    /// Let a node take work (again)
    Enable { node: String },
    /// Take a node out of use at once: its instances are replaced elsewhere and stopped without waiting
    Disable { node: String },
    /// Vouch that everything on an offline node has stopped, so that it may start elsewhere
    #[command(
        after_help = "Say this only if you know it: what runs there nevertheless will run twice.\nThe node must be offline."
    )]
    ConfirmDead { node: String },
}

#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Closed together, drained one after the other
    #[arg(value_name = "NODE", required_unless_present = "selector", conflicts_with = "selector")]
    pub nodes: Vec<String>,
    /// All nodes with these labels, like rack=r1 or rack=r1,disk=old
    #[arg(long, value_name = "K=V", value_delimiter = ',', value_parser = pair)]
    pub selector: Vec<(String, String)>,
    #[command(flatten)]
    pub deadline: DeadlineArgs,
    /// Leave system instances running; the drain ends without them
    #[arg(long)]
    pub ignore_system: bool,
    /// Let the drain end although stateful instances stay; they run on
    #[arg(long)]
    pub ack_stateful: bool,
    /// Stop stateful instances too; their volumes stay on the node, so they are down until it is back
    #[arg(long)]
    pub include_stateful: bool,
    /// What becomes of the node: it stays up and empty, or its daemon stops
    #[arg(long, value_parser = ["stay", "stop"])]
    pub then: Option<String>,
    /// What brings it back: `tidegate node enable`, or the next start of its daemon
    #[arg(long = "return", value_name = "HOW", value_parser = ["enable", "restart"])]
    pub back: Option<String>,
    /// Why, for those who look at it later
    #[arg(long, value_name = "TEXT")]
    pub message: Option<String>,
    /// Kept with the drain, like ticket=OPS-1; may be repeated
    #[arg(long, value_name = "K=V", value_parser = pair)]
    pub meta: Vec<(String, String)>,
    /// Show what would happen, and change nothing
    #[arg(long, conflicts_with = "detach")]
    pub plan: bool,
    /// Return once it is accepted
    #[arg(long)]
    pub detach: bool,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct DeadlineArgs {
    /// What still runs then is stopped, whether or not there is room for it elsewhere (by default after 1h)
    #[arg(long, value_name = "SPAN", value_parser = deadline, allow_hyphen_values = true)]
    pub deadline: Option<String>,
    /// Wait for as long as it takes
    #[arg(long)]
    pub no_deadline: bool,
    /// A deadline of now: stop everything that may be stopped without waiting for replacements
    #[arg(long)]
    pub force: bool,
}

/// `KEY=VALUE`.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write it like key=value".to_owned()),
    }
}

pub(crate) fn deadline(text: &str) -> Result<String, String> {
    match model::units::parse_duration(text)? {
        model::Millis(0) => Err("a deadline of nothing is --force".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

#[derive(Debug, Subcommand)]
pub enum DrainCommand {
    /// All drains, the newest first
    List,
    /// One drain: what remains on its nodes, what waits, what blocks
    #[command(after_help = "Example:\n  tidegate drain status 7")]
    Status {
        /// Its number
        epoch: String,
    },
    /// Cancel a drain: all its nodes take work again
    Cancel {
        /// Its number
        epoch: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum InstanceCommand {
    /// All instances
    #[command(after_help = "Example:\n  tidegate instance list --service web --node node-2")]
    List {
        /// Only those of a service
        #[arg(long)]
        service: Option<String>,
        /// Only those on a node
        #[arg(long)]
        node: Option<String>,
        /// Also those that were told to stop and did
        #[arg(short, long)]
        all: bool,
    },
    /// One instance
    Status { id: String },
    /// What an instance wrote
    #[command(after_help = "Example:\n  tidegate instance logs -f web-1k3f9a2")]
    Logs {
        id: String,
        /// Wait for what comes
        #[arg(short, long)]
        follow: bool,
        /// The last lines
        #[arg(long, default_value_t = 100, value_name = "N")]
        lines: u32,
    },
    /// Stop an instance; its service starts another in its place
    Stop { id: String },
}

#[derive(Debug, Subcommand)]
pub enum FeedCommand {
    /// All feeds
    List,
    /// One feed: where it runs, how far it is, what is in its way
    Status { feed: String },
    /// Stop a feed's dispatchers with their checkpoints; the source holds back what comes meanwhile
    #[command(after_help = "Example:\n  tidegate feed pause orders")]
    Pause { feed: String },
    /// Let a paused feed go on from where it was
    Resume { feed: String },
    /// Have a span of a feed worked on another node; refused if that node is closed
    #[command(
        after_help = "Example:\n  tidegate feed move orders app --to node-2\n\nThe dispatcher is made ready there, stopped where it is, and started from its checkpoint."
    )]
    Move {
        feed: String,
        /// A table with its schema, a log file without its ending, or what your command calls it
        span: String,
        /// The node that is to have it
        #[arg(long, value_name = "NODE")]
        to: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// All stores: what their backend says of them, how far those that leave are
    List {
        /// Only those of a group
        #[arg(long)]
        group: Option<String>,
    },
    /// One store
    Status { store: String },
    /// Let a store go first when its group gets smaller
    #[command(after_help = "Example:\n  tidegate store mark kv-1 && tidegate scale store-group/kv 3")]
    Mark { store: String },
    /// Take a mark back
    Unmark { store: String },
    /// Restart a store gracefully: its leaders leave first, and come back when it is ready again
    #[command(
        after_help = "Examples:\n  tidegate store restart kv-0\n  tidegate store restart kv-0 --cancel\n\n\
                      It starts on another node if its own is closed and its volume is movable."
    )]
    Restart {
        store: String,
        /// End a restart that has not happened yet
        #[arg(long)]
        cancel: bool,
    },
    /// Move a store's leaders away, and keep them away
    EvictLeader {
        store: String,
        /// Let leaders come back
        #[arg(long)]
        cancel: bool,
    },
}

#[derive(Debug, Subcommand)]
pub enum StoreGroupCommand {
    /// All store groups
    List,
    /// One group and its stores
    Status { group: String },
}

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token; it is printed once, and kept nowhere
    #[command(
        after_help = "Examples:\n  tidegate token create alice --role operator > ~/.config/tidegate/token\n  \
                      tidegate token create grafana --role viewer --expires-in 720h"
    )]
    Create {
        /// Whose it is: what the audit log will say
        name: String,
        /// viewer: may look; operator: may change things
        #[arg(long, value_parser = ["viewer", "operator"])]
        role: String,
        /// Like 720h; otherwise it is good until it is revoked
        #[arg(long, value_name = "SPAN")]
        expires_in: Option<String>,
    },
    /// All tokens, without what they are
    List,
    /// Refuse a token from now on
    Revoke { name: String },
}

#[derive(Debug, Subcommand)]
pub enum TlsCommand {
    /// Make an authority: whoever has its key can make certificates that the cluster believes
    #[command(after_help = "Examples:\n  tidegate tls init certs\n  \
                      tidegate tls init certs --node n1=10.0.0.1 --node n2=10.0.0.2,n2.example --person alice\n\n\
                      Keep DIR/ca.key away from the nodes. A node needs ca.pem and its own two files.")]
    Init {
        dir: PathBuf,
        /// Also a certificate for this node; may be repeated
        #[arg(long, value_name = "NAME=HOST[,HOST…]", value_parser = node_and_hosts)]
        node: Vec<(String, Vec<String>)>,
        /// Also an operator's certificate for this person; may be repeated
        #[arg(long, value_name = "NAME")]
        person: Vec<String>,
    },
    /// Make a node's certificate, or the next one
    #[command(after_help = "Example:\n  tidegate tls node certs n1 --host 10.0.0.1 --host n1.example\n\n\
                      A running daemon takes the files up by itself once they have been copied to it.")]
    Node {
        /// The directory of the authority
        dir: PathBuf,
        /// The node's id
        name: String,
        /// An address or a name at which others reach it
        #[arg(long, required = true)]
        host: Vec<String>,
        /// How long it is good
        #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3650))]
        days: u32,
    },
    /// Make a person's certificate: with it the first token is made
    #[command(
        after_help = "Example:\n  tidegate tls person certs alice\n\nKeep it short-lived, and use tokens: it is revoked by a file on every node."
    )]
    Person {
        /// The directory of the authority
        dir: PathBuf,
        /// What the audit log will call them
        name: String,
        /// viewer: may look; operator: may change things
        #[arg(long, default_value = "operator", value_parser = ["viewer", "operator"])]
        role: String,
        /// How long it is good
        #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3650))]
        days: u32,
    },
    /// What a certificate says
    Show { file: PathBuf },
    /// Have a certificate count no more
    #[command(after_help = "Example:\n  tidegate tls revoke certs n1\n\n\
                      It takes effect where the list that it names lies beside ca.pem: a running daemon takes it up by\n\
                      itself, refuses the certificate from then on and ends its streams. Revoke before making the next.")]
    Revoke {
        /// The directory of the authority
        dir: PathBuf,
        /// The node or the person
        name: String,
    },
}

/// `NAME=HOST,HOST`.
pub(crate) fn node_and_hosts(text: &str) -> Result<(String, Vec<String>), String> {
    let (name, hosts) = pair(text).map_err(|_| "write it like n1=10.0.0.1,n1.example".to_owned())?;
    let hosts: Vec<String> = hosts.split(',').map(str::to_owned).collect();
    match hosts.iter().any(String::is_empty) {
        true => Err("write it like n1=10.0.0.1,n1.example".to_owned()),
        false => Ok((name, hosts)),
    }
}

#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// All volumes
    List,
    /// One volume
    Status { volume: String },
    /// Make a node the home of a volume, after its data was brought there
    #[command(after_help = "Example:\n  tidegate volume attach db-data-0 --node node-2")]
    Attach {
        volume: String,
        #[arg(long)]
        node: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum DemoCommand {
    Web {
        #[arg(long)]
        port: u16,
    },
    Batch,
    System,
    Store,
    Orders {
        #[arg(long)]
        dir: PathBuf,
    },
}
