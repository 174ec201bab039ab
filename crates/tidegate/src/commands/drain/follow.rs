//! Follows a drain to its end: on a terminal as a picture, elsewhere as lines. Whoever leaves, or loses
//! the connection, leaves the drain as it is.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use server::view::{DrainStatusView, DrainView};
use tokio::signal::unix::{SignalKind, signal};

use super::{super::Asker, frame::Live, is_over, lines::Lines, print};
use crate::{
    client::{Look, shape},
    failure::{Failure, Outcome},
    out,
};

const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A fail-over takes seconds. A cluster that is silent for this long is not failing over.
const SILENCE_MAX: Duration = Duration::from_secs(300);

enum Screen {
    Live(Live),
    Lines(Lines),
}

impl Screen {
    fn new() -> Screen {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        match std::io::stderr().is_terminal() && !is_dumb {
            true => Screen::Live(Live::default()),
            false => Screen::Lines(Lines::default()),
        }
    }

    fn show(&mut self, epoch: u64, parts: &[&DrainStatusView], note: Option<&str>, elapsed: Duration) {
        match self {
            Screen::Live(live) => live.show(epoch, parts, note, elapsed),
            Screen::Lines(lines) => lines.news(parts, elapsed).iter().for_each(out::note),
        }
    }

    fn clear(&mut self) {
        if let Screen::Live(live) = self {
            live.clear();
        }
    }
}

/// Follows the parts of a drain that were asked for.
pub async fn follow(asker: &Asker, epoch: u64, nodes: Vec<String>) -> Outcome {
    let mut watch =
        Watch { epoch, nodes, screen: Screen::new(), began: Instant::now(), last: None, silent: None };
    let mut interrupt = signal(SignalKind::interrupt())
        .map_err(|error| Failure::error(format!("cannot wait for Ctrl-C: {error}")))?;
    let path = format!("/v1/drains/{epoch}");
    loop {
        let look = tokio::select! {
            look = asker.client.look(&path) => look,
            _ = interrupt.recv() => return watch.detached(),
        };
        if watch.take(look)? {
            return watch.ended(asker);
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            _ = interrupt.recv() => return watch.detached(),
        }
    }
}

struct Watch {
    epoch: u64,
    nodes: Vec<String>,
    screen: Screen,
    began: Instant,
    last: Option<DrainView>,
    /// Since when nobody answers.
    silent: Option<Instant>,
}

impl Watch {
    /// Whether it is over.
    fn take(&mut self, look: Look) -> Outcome<bool> {
        match look {
            Look::Seen(answer) => {
                if self.silent.take().is_some() {
                    self.say("the cluster answers again");
                }
                self.last = Some(shape(&answer).inspect_err(|_| self.screen.clear())?);
                self.show(None);
                Ok(self.parts().iter().all(|part| is_over(part)))
            }
            Look::Nobody(why) => self.nobody(&why).map(|()| false),
            Look::Refused(failure) => {
                self.screen.clear();
                Err(failure)
            }
        }
    }

    fn nobody(&mut self, why: &str) -> Outcome {
        let why = why.split("; ").next().unwrap_or(why);
        let note = format!("{why}; trying again, the drain goes on without us");
        match self.silent {
            None => {
                self.silent = Some(Instant::now());
                self.say(&note);
            }
            Some(since) if since.elapsed() > SILENCE_MAX => {
                self.screen.clear();
                let (epoch, minutes) = (self.epoch, SILENCE_MAX.as_secs() / 60);
                return Err(Failure::error(format!(
                    "{why}, for {minutes} minutes; the drain goes on if the cluster does: tidegate drain status {epoch}"
                )));
            }
            Some(_) => {}
        }
        if matches!(self.screen, Screen::Live(_)) {
            self.show(Some(&note));
        }
        Ok(())
    }

    /// In lines it is said; in the picture it is shown while it lasts.
    fn say(&self, text: &str) {
        if matches!(self.screen, Screen::Lines(_)) {
            out::note(format!("{} {text}", out::span(self.began.elapsed().as_secs() as i64)));
        }
    }

    fn show(&mut self, note: Option<&str>) {
        let (epoch, elapsed) = (self.epoch, self.began.elapsed());
        let parts = of(&self.last, &self.nodes);
        self.screen.show(epoch, &parts, note, elapsed);
    }

    fn parts(&self) -> Vec<&DrainStatusView> {
        of(&self.last, &self.nodes)
    }

    fn detached(mut self) -> Outcome {
        self.screen.clear();
        let epoch = self.epoch;
        out::note(format!(
            "the drain goes on; see: tidegate drain status {epoch}, cancel: tidegate drain cancel {epoch}"
        ));
        Ok(())
    }

    fn ended(mut self, asker: &Asker) -> Outcome {
        self.screen.clear();
        let parts = self.parts();
        if asker.is_json() {
            let json = match parts.as_slice() {
                [part] => serde_json::to_value(part),
                _ => serde_json::to_value(&self.last),
            };
            out::json(&json.map_err(|error| Failure::error(format!("cannot write JSON: {error}")))?)?;
        } else {
            for part in &parts {
                print::ending(part)?;
            }
        }
        match parts.iter().all(|part| as_asked(part)) {
            true => Ok(()),
            // The lines above have said it.
            false => Err(Failure { code: 3, message: None }),
        }
    }
}

fn of<'a>(drain: &'a Option<DrainView>, nodes: &[String]) -> Vec<&'a DrainStatusView> {
    drain.iter().flat_map(|drain| &drain.nodes).filter(|part| nodes.contains(&part.node)).collect()
}

/// A deadline that was reached is not what was asked for, unless it was asked to be now.
fn as_asked(part: &DrainStatusView) -> bool {
    part.state == "drained" && (!part.deadline_reached || print::is_forced(part))
}
