//! The regions of all stores that play TiKV, in a directory that they share: what Raft agrees on among real ones.
//!
//! ```text
//! lock          held by whoever reads or writes
//! regions.json  where the peers of each region are, and who leads
//! stores/7      where the volume of store 7 is; locked by its process as long as that lives
//! hold-peers    as long as it is there, no peer is added or removed
//! hold-leaders  as long as it is there, no leader steps down for another
//! ```
//!
//! The data of a region is a file in the volume of each store that has a peer of it. One that is added copies the leader's;
//! until then it is pending. A volume that is deleted too early is therefore data that is lost, and seen to be.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::proto::{self, ChangeKind, Role};

/// Of each region, for PD: less would be no size at all.
pub const REGION_BYTES: u64 = 8 << 20;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    pub id: u64,
    pub store: u64,
    pub role: Role,
    /// Has the region's data.
    pub ready: bool,
}

impl Peer {
    fn may_lead(&self) -> bool {
        self.ready && matches!(self.role, Role::Voter | Role::IncomingVoter)
    }

    fn told(&self) -> proto::Peer {
        proto::Peer { id: self.id, store_id: self.store, role: self.role.into() }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Region {
    pub id: u64,
    pub start: Vec<u8>,
    /// Empty: to the end of everything.
    pub end: Vec<u8>,
    pub conf_ver: u64,
    pub version: u64,
    pub term: u64,
    /// The id of a peer.
    pub leader: u64,
    pub peers: Vec<Peer>,
}

impl Region {
    pub fn led_from(&self) -> Option<u64> {
        self.peers.iter().find(|peer| peer.id == self.leader).map(|peer| peer.store)
    }

    /// What the leader tells PD.
    pub fn report(&self, header: proto::RequestHeader, interval: proto::Interval) -> proto::RegionHeartbeat {
        proto::RegionHeartbeat {
            header: Some(header),
            region: Some(self.told()),
            leader: self.peers.iter().find(|peer| peer.id == self.leader).map(Peer::told),
            pending_peers: self.peers.iter().filter(|peer| !peer.ready).map(Peer::told).collect(),
            approximate_size: REGION_BYTES,
            interval: Some(interval),
            approximate_keys: 1000,
            term: self.term,
        }
    }

    pub fn told(&self) -> proto::Region {
        proto::Region {
            id: self.id,
            start_key: self.start.clone(),
            end_key: self.end.clone(),
            epoch: Some(proto::Epoch { conf_ver: self.conf_ver, version: self.version }),
            peers: self.peers.iter().map(Peer::told).collect(),
        }
    }

    /// What must be in the file of each of its peers.
    pub fn data(&self) -> String {
        format!("the data of region {}", self.id)
    }

    fn lead_by(&mut self, peer: u64) {
        self.leader = peer;
        self.term += 1;
    }

    /// The part from `key` on is a region of its own, on the same stores; `ids` are for it and its peers.
    fn split(&mut self, key: &[u8], ids: &mut impl Iterator<Item = u64>) -> Option<Region> {
        if key <= self.start.as_slice() || !self.end.is_empty() && key >= self.end.as_slice() {
            return None;
        }
        let led_from = self.led_from()?;
        let id = ids.next()?;
        let mut peers = self.peers.clone();
        for peer in &mut peers {
            peer.id = ids.next()?;
        }
        let leader = peers.iter().find(|peer| peer.store == led_from)?.id;
        self.version += 1;
        let end = std::mem::replace(&mut self.end, key.to_owned());
        Some(Region { id, start: key.to_owned(), end, leader, peers, ..self.clone() })
    }

    /// Whether PD meant the region as it stands.
    fn is_meant(&self, wish: &proto::Wish) -> bool {
        let epoch = proto::Epoch { conf_ver: self.conf_ver, version: self.version };
        let peer = wish.target_peer.as_ref().map(|peer| peer.id);
        wish.epoch == Some(epoch) && peer == Some(self.leader)
    }

    fn change(&mut self, change: &proto::ChangePeer, joint: bool) {
        let Some(meant) = &change.peer else { return };
        let at = self.peers.iter().position(|peer| peer.store == meant.store_id);
        match (ChangeKind::try_from(change.kind), at) {
            (Ok(ChangeKind::Remove), Some(at)) => {
                self.peers.remove(at);
            }
            (Ok(ChangeKind::AddVoter), Some(at)) => {
                self.peers[at].role = if joint { Role::IncomingVoter } else { Role::Voter };
            }
            (Ok(ChangeKind::AddLearner), Some(at)) => {
                self.peers[at].role = if joint { Role::DemotingVoter } else { Role::Learner };
            }
            (Ok(kind @ (ChangeKind::AddVoter | ChangeKind::AddLearner)), None) => {
                let role = match (kind, joint) {
                    (ChangeKind::AddLearner, _) => Role::Learner,
                    (ChangeKind::AddVoter | ChangeKind::Remove, true) => Role::IncomingVoter,
                    (ChangeKind::AddVoter | ChangeKind::Remove, false) => Role::Voter,
                };
                self.peers.push(Peer { id: meant.id, store: meant.store_id, role, ready: false });
            }
            (Ok(ChangeKind::Remove), None) | (Err(_), _) => return,
        }
        self.conf_ver += 1;
    }

    /// Ends a change of several peers at once.
    fn settle(&mut self) {
        for peer in &mut self.peers {
            let role = match peer.role {
                Role::IncomingVoter => Role::Voter,
                Role::DemotingVoter => Role::Learner,
                Role::Voter | Role::Learner => continue,
            };
            peer.role = role;
            self.conf_ver += 1;
        }
    }

    /// Does what PD wants.
    fn obey(&mut self, wish: &proto::Wish, held: &Held, alive: impl Fn(u64) -> bool) {
        if let Some(transfer) = wish.transfer_leader.as_ref().filter(|_| !held.leaders) {
            let wanted = transfer.peers.iter().chain(&transfer.peer).map(|peer| peer.id);
            let able = |id: &u64| {
                self.peers.iter().any(|peer| peer.id == *id && peer.may_lead() && alive(peer.store))
            };
            if let Some(next) = wanted.into_iter().find(able) {
                self.lead_by(next);
            }
        }
        if held.peers {
            return;
        }
        if let Some(change) = &wish.change_peer {
            self.change(change, false);
        }
        match wish.change_peers.as_ref().map(|all| all.changes.as_slice()) {
            None => {}
            Some([]) => self.settle(),
            Some([one]) => self.change(one, false),
            Some(many) => many.iter().for_each(|change| self.change(change, true)),
        }
        self.elect(alive);
    }

    /// Another leader in the place of one that cannot lead.
    fn elect(&mut self, alive: impl Fn(u64) -> bool) {
        let leads = |peer: &Peer| alive(peer.store) && peer.role != Role::Learner;
        if self.peers.iter().any(|peer| peer.id == self.leader && leads(peer)) {
            return;
        }
        let voters = self.peers.iter().filter(|peer| peer.role != Role::Learner).count();
        let ready = self.peers.iter().filter(|peer| peer.ready && leads(peer)).count();
        let next = self.peers.iter().find(|peer| peer.may_lead() && alive(peer.store)).map(|peer| peer.id);
        if let Some(next) = next.filter(|_| 2 * ready > voters) {
            self.lead_by(next);
        }
    }
}

struct Held {
    peers: bool,
    leaders: bool,
}

/// A directory that stores share, and that tests look into.
#[derive(Clone, Debug)]
pub struct Books {
    directory: PathBuf,
}

impl Books {
    pub fn at(directory: &Path) -> io::Result<Books> {
        fs::create_dir_all(directory.join("stores"))?;
        Ok(Books { directory: directory.to_owned() })
    }

    fn locked<T>(&self, work: impl FnOnce(&mut Vec<Region>) -> io::Result<T>) -> io::Result<T> {
        let lock = File::create(self.directory.join("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        let place = self.directory.join("regions.json");
        let before: Vec<Region> = match fs::read(&place) {
            Ok(bytes) => serde_json::from_slice(&bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let mut regions = before.clone();
        let done = work(&mut regions)?;
        if regions != before {
            let part = self.directory.join("regions.part");
            fs::write(&part, serde_json::to_vec(&regions)?)?;
            fs::rename(part, place)?;
        }
        Ok(done)
    }

    pub fn regions(&self) -> io::Result<Vec<Region>> {
        self.locked(|regions| Ok(regions.clone()))
    }

    /// No peer is added or removed while this is so.
    pub fn hold_peers(&self, hold: bool) -> io::Result<()> {
        self.hold("hold-peers", hold)
    }

    /// No leader steps down for another while this is so.
    pub fn hold_leaders(&self, hold: bool) -> io::Result<()> {
        self.hold("hold-leaders", hold)
    }

    fn hold(&self, name: &str, hold: bool) -> io::Result<()> {
        let mark = self.directory.join(name);
        match hold {
            true => fs::write(mark, ""),
            false => fs::remove_file(mark),
        }
    }

    fn held(&self) -> Held {
        let is_there = |name: &str| self.directory.join(name).exists();
        Held { peers: is_there("hold-peers"), leaders: is_there("hold-leaders") }
    }

    fn entry(&self, store: u64) -> PathBuf {
        self.directory.join("stores").join(store.to_string())
    }

    /// Says that a store lives, for as long as the file is open.
    pub fn live(&self, store: u64, volume: &Path) -> io::Result<File> {
        fs::create_dir_all(volume.join("regions"))?;
        // the name of the file is what others lock: it is written in place
        let entry = File::options().create(true).write(true).truncate(false).open(self.entry(store))?;
        flock(&entry, FlockOperation::NonBlockingLockExclusive)?;
        fs::write(self.entry(store), volume.as_os_str().as_encoded_bytes())?;
        Ok(entry)
    }

    fn is_alive(&self, store: u64) -> bool {
        let Ok(entry) = File::open(self.entry(store)) else { return false };
        flock(&entry, FlockOperation::NonBlockingLockShared).is_err()
    }

    /// Where a region's data is in a store's volume.
    pub fn data(&self, store: u64, region: u64) -> Option<PathBuf> {
        let volume = fs::read_to_string(self.entry(store)).ok()?;
        Some(Path::new(&volume).join("regions").join(region.to_string()))
    }

    /// The first regions, all on one store.
    pub fn found(&self, first: Vec<Region>) -> io::Result<()> {
        self.locked(|regions| {
            for region in &first {
                self.write_data(region)?;
            }
            *regions = first;
            Ok(())
        })
    }

    /// Does what PD wants, if it is about the region as it stands. `ids` are for what begins with it.
    pub fn obey(&self, wish: &proto::Wish, ids: Vec<u64>) -> io::Result<()> {
        self.locked(|regions| {
            let meant = |region: &&mut Region| region.id == wish.region_id && region.is_meant(wish);
            let Some(region) = regions.iter_mut().find(meant) else { return Ok(()) };
            region.obey(wish, &self.held(), |store| self.is_alive(store));
            let (keys, mut ids) = (wish.split.iter().flat_map(|split| &split.keys), ids.into_iter());
            // from the end, so that each is a key of what is left
            let mut keys: Vec<&Vec<u8>> = keys.collect();
            keys.sort_unstable();
            let parts: Vec<Region> =
                keys.into_iter().rev().filter_map(|key| region.split(key, &mut ids)).collect();
            for part in &parts {
                self.write_data(part)?;
            }
            regions.extend(parts);
            Ok(())
        })
    }

    /// The peers of a region that have its data have it in their files.
    fn write_data(&self, region: &Region) -> io::Result<()> {
        for peer in region.peers.iter().filter(|peer| peer.ready) {
            let place = self.data(peer.store, region.id);
            fs::write(place.ok_or(io::ErrorKind::NotFound)?, region.data())?;
        }
        Ok(())
    }

    /// What a store does all the time: it votes, takes what it should have, drops what it should not, and looks what it leads.
    pub fn look(&self, store: u64) -> io::Result<Vec<Region>> {
        self.locked(|regions| {
            for region in regions.iter_mut() {
                region.elect(|store| self.is_alive(store));
                self.hold_data(store, region)?;
            }
            Ok(regions.clone())
        })
    }

    fn hold_data(&self, store: u64, region: &mut Region) -> io::Result<()> {
        let place = self.data(store, region.id).ok_or(io::ErrorKind::NotFound)?;
        let from = region.led_from().and_then(|leader| self.data(leader, region.id));
        let Some(peer) = region.peers.iter_mut().find(|peer| peer.store == store) else {
            return match fs::remove_file(&place) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                Err(_) | Ok(()) => Ok(()),
            };
        };
        let source = from.filter(|from| !peer.ready && from.exists());
        if let Some(source) = source {
            fs::copy(source, place)?;
            peer.ready = true;
        }
        Ok(())
    }
}
