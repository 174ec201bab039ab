//! Scratch data on its way between machines: slow, cut off, begun anew; and what must hold of it.

use std::sync::Arc;

use model::{Change, InstanceId, Scratch};
use protocol::{
    message::Run,
    node::{Copied, CopyEnd, Input, Note},
};

use crate::{
    process::Slot,
    world::{ToDaemon, World},
};

/// Per mille of copies that break off, while there are faults.
const BREAKS: u64 = 100;

impl World {
    pub fn copy(&mut self, machine: usize, id: InstanceId, note: Note, what: Arc<Run>) {
        self.say(format!("m{machine} copies scratch data for {id} from {:?}", what.disk_from));
        let attempt = self.number();
        let slots = &mut self.machines[machine].slots;
        let known = slots.remove(&id);
        if known.as_ref().is_some_and(|slot| slot.runs > 0) {
            return self.fail(11, format!("m{machine} copies scratch data for {id}, which has run"));
        }
        let again = known.as_ref().is_some_and(|slot| slot.copy_life != self.machines[machine].life);
        let mut slot = Slot::to_be_filled(note, what, self.now);
        (slot.took, slot.copy) = (known.and_then(|slot| slot.took), Some(attempt));
        slot.copy_life = self.machines[machine].life;
        self.machines[machine].slots.insert(id, slot);
        if again {
            self.cover.hit("scratch copy begun anew by another life");
        }
        let delay = if self.calm { self.rng.between(5, 200) } else { self.rng.between(5, 4000) };
        self.tell_daemon(delay, machine, ToDaemon::Copied { id, attempt });
    }

    pub fn give_up_copy(&mut self, machine: usize, id: InstanceId) {
        self.say(format!("m{machine} gives up the copy for {id}"));
        if let Some(slot) = self.machines[machine].slots.get_mut(&id) {
            slot.copy = None;
        }
        let end = CopyEnd::Broken { heard: true, message: "it was cut short".to_owned() };
        self.tell_daemon(1, machine, ToDaemon::Node(Input::CopyEnded { id, end }));
    }

    /// As much time has passed as the copy takes: it went well, or not.
    pub fn copy_is_due(&mut self, machine: usize, id: InstanceId, attempt: u64) {
        let Some(slot) = self.machines[machine].slots.get(&id) else { return };
        if slot.copy != Some(attempt) {
            return;
        }
        let (run, took) = (slot.run.clone(), slot.took);
        let Some(from) = run.disk_from.clone() else { return };
        let end = match took {
            Some(_) => CopyEnd::Done,
            None => self.try_copy(machine, from.instance, &from.api),
        };
        self.say(format!("m{machine} copied scratch data for {id}: {end:?}"));
        if let Some(slot) = self.machines[machine].slots.get_mut(&id) {
            slot.copy = None;
            if end == CopyEnd::Done {
                slot.took = Some(from.instance);
            }
        }
        match &end {
            CopyEnd::Done => self.cover.hit("scratch data copied"),
            CopyEnd::Broken { .. } => self.cover.hit("scratch copy broke off"),
            CopyEnd::Impossible { .. } => self.cover.hit("scratch data not there"),
        }
        self.node_input(machine, Input::CopyEnded { id, end });
    }

    fn try_copy(&mut self, machine: usize, from: InstanceId, api: &str) -> CopyEnd {
        let impossible = |message: &str| CopyEnd::Impossible { message: message.to_owned() };
        let broken = |heard| CopyEnd::Broken { heard, message: "the stream broke".to_owned() };
        let there = self.machines.iter().position(|machine| format!("{}:7070", machine.id) == api);
        let Some(there) = there else { return impossible("nobody knows where it was") };
        let cut = self.blocked.contains(&(machine, there)) || self.blocked.contains(&(there, machine));
        let old = &self.machines[there];
        if cut || !old.powered || old.suspended || old.paused || old.daemon.is_none() {
            return broken(false);
        }
        if !self.calm && self.rng.chance(BREAKS) {
            return broken(true);
        }
        let old = &self.machines[there];
        let Some(slot) = old.slots.get(&from) else { return impossible("this node has nothing of it") };
        if slot.live().is_some() || slot.note.over.is_none() {
            return impossible("it is not over");
        }
        let twin = self.machines.iter().flat_map(|machine| &machine.slots);
        let mut twin = twin.filter(|(_, slot)| slot.took == Some(from) && slot.runs > 0);
        if let Some(twin) = twin.next().map(|(id, _)| *id) {
            self.fail(11, format!("m{machine} takes the data of {from}, which {twin} took before"));
        }
        CopyEnd::Done
    }

    /// Nothing starts before its data is there or given up, and nothing says that it has what it has not.
    pub fn check_scratch(&mut self, machine: usize, id: InstanceId) {
        let Some(slot) = self.machines[machine].slots.get(&id) else { return };
        let Some(from) = slot.run.disk_from.as_ref().map(|from| from.instance) else { return };
        match (slot.note.copied, slot.took) {
            (Copied::Done, Some(took)) if took == from => {}
            (Copied::Not, _) => self.cover.hit("started without its scratch data"),
            (copied, took) => {
                self.fail(11, format!("m{machine} starts {id}: {copied:?} of {from}, and it has {took:?}"));
            }
        }
    }

    /// A directory goes: nobody may be about to take what is in it.
    pub fn check_erased(&mut self, id: InstanceId) {
        let takers = self.mirror.instances().filter(|taker| {
            taker.scratch == Scratch::Takes
                && taker.replaces == Some(id)
                && taker.awaits_scratch()
                && taker.is_wanted()
                && !self.scratch_settled.contains(&taker.id)
        });
        let removed = |taker: &model::Instance| {
            self.mirror.service(taker.service).is_none_or(|entry| entry.rec.removed)
        };
        let waits = { takers }.find(|taker| !removed(taker)).map(|taker| taker.id);
        if let Some(taker) = waits {
            self.fail(17, format!("the data of {id} is erased, and {taker} has not taken it"));
        }
    }

    /// One that has its data, or has given it up, may lose it later with its machine.
    pub fn note_scratch(&mut self, change: &Change) {
        if let Change::Instance(instance) = change
            && instance.scratch == Scratch::Takes
            && !instance.awaits_scratch()
        {
            self.scratch_settled.insert(instance.id);
        }
    }
}
