//! `tls …`: certificates, made on the machine of whoever runs the cluster.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use doors::{Authority, Certificate, IssueError, Issued, Who};
use jiff::Timestamp;
use model::Access;

use crate::{
    cli::TlsCommand,
    failure::{Failure, Outcome},
    out,
};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// What `init` gives to those that it is told of: as long as `node` and `person` do by themselves.
const NODE_DAYS: u32 = 365;
const PERSON_DAYS: u32 = 30;

pub fn tls(command: TlsCommand) -> Outcome {
    match command {
        TlsCommand::Init { dir, node, person } => {
            let authority = Authority::init(&dir).map_err(failed)?;
            out::line(format!("authority: {}", authority.certificate().display()))?;
            for (name, hosts) in node {
                made(&name, authority.node(&name, &hosts, in_days(NODE_DAYS)))?;
            }
            for name in person {
                made(&name, authority.person(&name, Access::Operator, in_days(PERSON_DAYS)))?;
            }
            let key = dir.join("ca.key");
            out::note(format!(
                "whoever has {} can let anybody in: keep it away from the nodes",
                key.display()
            ));
            Ok(())
        }
        TlsCommand::Node { dir, name, host, days } => {
            made(&name, authority(&dir)?.node(&name, &host, in_days(days)))
        }
        TlsCommand::Person { dir, name, role, days } => {
            let access = Access::parse(&role).unwrap_or(Access::Viewer);
            made(&name, authority(&dir)?.person(&name, access, in_days(days)))
        }
        TlsCommand::Show { file } => show(&file),
        TlsCommand::Revoke { dir, name } => match authority(&dir)?.revoke(&name).map_err(failed)? {
            Some(list) => {
                out::line(format!("{name} is on {}", list.display()))?;
                out::note(
                    "copy that file beside ca.pem on every node; until then the certificate counts there",
                );
                Ok(())
            }
            None => out::line(format!("{name} was revoked before")),
        },
    }
}

fn in_days(days: u32) -> SystemTime {
    SystemTime::now() + days * DAY
}

fn authority(dir: &Path) -> Outcome<Authority> {
    Authority::open(dir).map_err(failed)
}

fn made(name: &str, issued: Result<Issued, IssueError>) -> Outcome {
    let Issued { cert, key } = issued.map_err(failed)?;
    out::line(format!("{name}: {} {}", cert.display(), key.display()))
}

fn failed(error: IssueError) -> Failure {
    Failure::from(anyhow::Error::new(error))
}

fn show(file: &Path) -> Outcome {
    let certificate = Certificate::read(file).map_err(|error| Failure::from(anyhow::Error::new(error)))?;
    let who = match &certificate.who {
        Some(Who::Node(name)) => format!("node {name}"),
        Some(Who::Person { name, access }) => format!("{name}, {}", access.as_str()),
        None => "nobody: an authority, or not made by tidegate".to_owned(),
    };
    out::line(format!("for      {who}"))?;
    if !certificate.hosts.is_empty() {
        out::line(format!("hosts    {}", certificate.hosts.join(", ")))?;
    }
    let time = |seconds| Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
    out::line(format!("from     {}", time(certificate.not_before)))?;
    let left = match certificate.lives().as_secs() / DAY.as_secs() {
        0 if certificate.lives().is_zero() => "expired".to_owned(),
        days => format!("{days} days left"),
    };
    out::line(format!("until    {} ({left})", time(certificate.not_after)))
}
