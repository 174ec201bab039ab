//! The copy of scratch data that comes before an instance's first start: begun, tried again, given up.
//!
//! Best effort and bounded: a predecessor's node that says nothing for `offline_after` counts as gone, and
//! after `migrate.healthy_deadline` the instance starts with what it has, which is nothing. A half copy is
//! never used: each try begins anew, and what the shell calls done is whole and on disk.

use model::{Millis, Time};

use crate::message::Run;

/// Between two tries: the old daemon may be starting again.
const COPY_PAUSE: Millis = Millis(500);

/// What became of the scratch data that an instance was to be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// It has not come; the instance does not start before that is decided.
    Due,
    /// It is here, or there was none to come.
    Done,
    /// It was given up: the instance begins with an empty directory.
    Not,
}

/// How a try to copy ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyEnd {
    /// All of it is here, and on disk.
    Done,
    /// It may work if tried again. `heard`: the old node said something.
    Broken { heard: bool, message: String },
    /// Trying again would not help: the old node has nothing, or this one has no room.
    Impossible { message: String },
}

/// What follows a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Start,
    Again { at: Time },
}

#[derive(Clone, Debug)]
pub(super) struct Copy {
    pub state: Copied,
    /// Why it was given up, or why the last try failed.
    pub cause: Option<String>,
    /// Its directory was made for the copy's sake.
    pub on_disk: bool,
    /// When it is given up: with its limit, for the message.
    until: Option<(Time, Millis)>,
    tried_at: Time,
    /// The old node has said nothing since then.
    unheard_since: Option<Time>,
}

impl Copy {
    pub fn ordered(run: &Run) -> Copy {
        let state = if run.disk_from.is_some() { Copied::Due } else { Copied::Done };
        Copy { state, cause: None, on_disk: false, until: None, tried_at: Time(0), unheard_since: None }
    }

    pub fn found(run: &Run, state: Copied) -> Copy {
        Copy { state, on_disk: state != Copied::Done, ..Copy::ordered(run) }
    }

    pub fn is_due(&self) -> bool {
        self.state == Copied::Due
    }

    pub fn begin(&mut self, limit: Millis, now: Time) {
        self.until.get_or_insert((now + limit, limit));
        (self.tried_at, self.on_disk) = (now, true);
    }

    pub fn gives_up_at(&self) -> Option<Time> {
        self.until.map(|(at, _)| at)
    }

    /// `gone_after`: a node that is silent for so long counts as gone.
    pub fn ended(&mut self, end: CopyEnd, gone_after: Millis, now: Time) -> Next {
        let (heard, message) = match end {
            CopyEnd::Done => {
                self.state = Copied::Done;
                return Next::Start;
            }
            CopyEnd::Impossible { message } => return self.give_up(message),
            CopyEnd::Broken { heard, message } => (heard, message),
        };
        let unheard_since = *self.unheard_since.get_or_insert(self.tried_at);
        if heard {
            self.unheard_since = None;
        }
        if let Some((_, limit)) = self.until.filter(|(at, _)| *at <= now) {
            return self.give_up(format!("not done within {limit}: {message}"));
        }
        if !heard && now.since(unheard_since) >= gone_after {
            return self.give_up(format!("the old node did not answer for {gone_after}: {message}"));
        }
        self.cause = Some(message);
        Next::Again { at: now + COPY_PAUSE }
    }

    fn give_up(&mut self, cause: String) -> Next {
        (self.state, self.cause) = (Copied::Not, Some(cause));
        Next::Start
    }
}
