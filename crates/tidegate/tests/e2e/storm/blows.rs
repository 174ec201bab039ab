//! What may befall a cluster. Each blow begins on a cluster that has everybody, and leaves one.

use reqwest::Method;
use rustix::process::Signal;
use server::view::FeedView;

use crate::{
    drains::{drain_of, until_drain},
    harness::{Api, net::Cut, until},
};

use super::{
    FEED, NODES, Storm,
    gate::{self, Promise},
    is_off, number_of,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    Drain,
    DrainWithADeath,
    DrainCancelled,
    CoordinatorKilled,
    WorkerKilled,
    WorkerStopped,
    WorkerCut,
    CoordinatorStopped,
    MachineLost,
    EtcdKilled,
    EtcdStopped,
    DiskFull,
    CoordinatorsDiskFull,
}

impl Blow {
    /// Those that a feed alone has to get over.
    pub const OF_FEEDS: [Blow; 7] = [
        Blow::Drain,
        Blow::DrainWithADeath,
        Blow::DrainCancelled,
        Blow::CoordinatorKilled,
        Blow::WorkerKilled,
        Blow::WorkerStopped,
        Blow::WorkerCut,
    ];

    pub const ALL: [Blow; 13] = [
        Blow::Drain,
        Blow::DrainWithADeath,
        Blow::DrainCancelled,
        Blow::CoordinatorKilled,
        Blow::WorkerKilled,
        Blow::WorkerStopped,
        Blow::WorkerCut,
        Blow::CoordinatorStopped,
        Blow::MachineLost,
        Blow::EtcdKilled,
        Blow::EtcdStopped,
        Blow::DiskFull,
        Blow::CoordinatorsDiskFull,
    ];
}

impl Storm {
    pub async fn strike(&mut self, blow: Blow) {
        match blow {
            Blow::Drain => self.drain(false).await,
            Blow::DrainWithADeath => self.drain(true).await,
            Blow::DrainCancelled => self.drain_and_cancel().await,
            Blow::CoordinatorKilled => self.kill_the_coordinator().await,
            Blow::WorkerKilled => self.kill_a_worker().await,
            Blow::WorkerStopped => self.stop_a_worker().await,
            Blow::WorkerCut => self.cut_a_worker().await,
            Blow::CoordinatorStopped => {
                let leads = self.coordinator().await;
                self.stop(&leads).await;
            }
            Blow::MachineLost => self.lose_a_machine().await,
            Blow::EtcdKilled => self.kill_a_member_of_etcd().await,
            Blow::EtcdStopped => self.stop_a_member_of_etcd().await,
            Blow::DiskFull => {
                let node = self.victim();
                self.fill_the_disk_of(&node).await;
            }
            Blow::CoordinatorsDiskFull => {
                let leads = self.coordinator().await;
                self.fill_the_disk_of(&leads).await;
            }
        }
        self.until_all_up().await;
    }

    fn victim(&mut self) -> String {
        (*self.dice.one_of(&NODES)).to_owned()
    }

    /// Somebody who answers while this one does not.
    fn beside(&self, victim: &str) -> Api {
        let other = NODES.iter().find(|name| **name != victim).expect("there are several");
        self.cluster.api_of(other)
    }

    async fn feed_beside(&self, victim: &str, what: &str, holds: impl Fn(&FeedView) -> bool) {
        let api = self.beside(victim);
        until(what, async || {
            let feed = api.feed(FEED).await?;
            if holds(&feed) { Ok(()) } else { Err(format!("{feed:?}")) }
        })
        .await;
    }

    /// Asks until it is taken; asked twice does no harm.
    async fn ask(&self, method: Method, path: &str, body: Option<&str>, fine: &[u16]) -> u16 {
        until(&format!("{method} {path} to be taken"), async || {
            let api = &self.cluster.api;
            match api.ask(method.clone(), path, body).await? {
                (status, _) if fine.contains(&status) => Ok(status),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }

    async fn begin_drain(&self, node: &str) {
        self.ask(Method::PUT, &format!("/v1/nodes/{node}/drain"), Some("{}"), &[200, 202]).await;
    }

    async fn enable(&self, node: &str) {
        let body = r#"{"intent": "active"}"#;
        self.ask(Method::PUT, &format!("/v1/nodes/{node}/intent"), Some(body), &[200, 202]).await;
    }

    async fn drain(&mut self, with_a_death: bool) {
        let node = self.victim();
        self.begin_drain(&node).await;
        if with_a_death {
            let dies = self.victim();
            self.say(&format!("{dies} dies in the drain of {node}"));
            self.cluster.daemon_mut(&dies).kill();
            self.cluster.daemon_mut(&dies).start(&[]);
        }
        let over = |state: &str| ["drained", "node_lost"].contains(&state);
        let ended = until_drain(&self.cluster.api, &node, "over", |drain| over(&drain.state)).await;
        if ended.state == "drained" {
            self.feed_beside(&node, "nothing to be left there", |feed| is_off(feed, &node)).await;
        }
        self.say(&format!("{node}: {}", ended.state));
        self.enable(&node).await;
    }

    async fn drain_and_cancel(&mut self) {
        let node = self.victim();
        let before = self.cluster.api.feed(FEED).await.ok().and_then(|feed| feed.maintainer);
        self.begin_drain(&node).await;
        // Somewhere in the middle: the maintainer has gone, dispatchers are going, or it is over already.
        until("the drain to have begun", async || {
            let feed = self.cluster.api.feed(FEED).await?;
            let drain = drain_of(&self.cluster.api, &node).await?;
            let begun = feed.moving > 0 || feed.maintainer != before || drain.state != "draining";
            if begun { Ok(()) } else { Err(format!("{feed:?}")) }
        })
        .await;
        self.ask(Method::DELETE, &format!("/v1/nodes/{node}/drain"), None, &[200, 202, 409]).await;
        let ended = until_drain(&self.cluster.api, &node, "over", |drain| drain.ended_at.is_some()).await;
        self.say(&format!("{node}: {}", ended.state));
        self.enable(&node).await;
    }

    async fn kill_the_coordinator(&mut self) {
        let leads = until("a coordinator", async || self.cluster.api.status().await).await.coordinator;
        self.say(&format!("{} led in term {}", leads.id, leads.term));
        self.cluster.daemon_mut(&leads.id).kill();
        let at_once = self.dice.once_in(2);
        if !at_once {
            let api = self.beside(&leads.id);
            until("another coordinator", async || {
                let now = api.status().await?.coordinator;
                if now.id == leads.id { Err(format!("term {}", now.term)) } else { Ok(()) }
            })
            .await;
        }
        self.cluster.daemon_mut(&leads.id).start(&[]);
    }

    async fn kill_a_worker(&mut self) {
        let node = self.victim();
        self.cluster.daemon_mut(&node).kill();
        let at_once = self.dice.once_in(2);
        self.say(&format!("{node}, started again {}", if at_once { "at once" } else { "when it is lost" }));
        if !at_once {
            self.feed_beside(&node, "its dispatchers to run elsewhere", |feed| is_off(feed, &node)).await;
        }
        self.cluster.daemon_mut(&node).start(&[]);
    }

    async fn coordinator(&self) -> String {
        until("a coordinator", async || self.cluster.api.status().await).await.coordinator.id
    }

    async fn stop_a_worker(&mut self) {
        let node = self.victim();
        self.stop(&node).await;
    }

    async fn stop(&mut self, node: &str) {
        self.say(node);
        self.cluster.daemon(node).suspend().await;
        self.until_given_up(node).await;
        self.cluster.daemon(node).signal(Signal::CONT);
    }

    async fn cut_a_worker(&mut self) {
        let node = self.victim();
        let cut = *self.dice.one_of(&[Cut::Both, Cut::ToNode, Cut::FromNode]);
        let number = number_of(&node) as u8;
        if self.net.is_none() {
            return;
        }
        self.say(&format!("{node}: {cut:?}"));
        self.promise(Promise::Excused).await;
        self.net.as_ref().expect("it was there").cut(number, cut);
        self.until_nobody_is_sent_to(&node).await;
        self.promise(Promise::Kept).await;
        self.until_given_up(&node).await;
        self.net.as_ref().expect("it was there").mend(number);
    }

    async fn promise(&mut self, promise: Promise) {
        if let Some(more) = &mut self.more {
            more.gate.promise(&self.cluster, promise).await;
        }
    }

    async fn until_nobody_is_sent_to(&self, node: &str) {
        if self.more.is_none() {
            return;
        }
        let api = self.beside(node);
        api.until_health(node, "offline").await;
        let host = until("its address", async || api.node(node).await).await.host;
        let leads = until("a coordinator that lives", async || {
            let leads = api.status().await?.coordinator.id;
            if leads == node { Err(leads) } else { Ok(leads) }
        })
        .await;
        gate::until_given_up(&api, &self.cluster.api_of(&leads), &host).await;
    }

    async fn lose_a_machine(&mut self) {
        let node = self.victim();
        self.say(&node);
        self.promise(Promise::Excused).await;
        self.cluster.lose(&node);
        self.until_nobody_is_sent_to(&node).await;
        self.promise(Promise::Kept).await;
        self.until_given_up(&node).await;
        self.cluster.daemon_mut(&node).start(&[]);
    }

    /// One of three: the other two go on, and so does a drain.
    async fn kill_a_member_of_etcd(&mut self) {
        let member = self.member_of_etcd().await;
        self.etcd.kill(member);
        self.drain(false).await;
        self.etcd.restart(member).await;
    }

    async fn stop_a_member_of_etcd(&mut self) {
        let member = self.member_of_etcd().await;
        self.etcd.pause(member);
        self.drain_and_cancel().await;
        self.etcd.resume(member);
        self.etcd.leader().await;
    }

    /// Every other time the one that leads.
    async fn member_of_etcd(&mut self) -> usize {
        let leads = self.etcd.leader().await;
        let member = if self.dice.once_in(2) { leads } else { self.dice.below(3) as usize };
        self.say(&format!("member {member}; {leads} leads"));
        member
    }

    /// It is seen to be degraded; what runs there runs on, also when its daemon starts anew meanwhile.
    async fn fill_the_disk_of(&mut self, node: &str) {
        let number = number_of(node);
        let Some(disks) = &self.disks else { return };
        disks.fill(number);
        let dies = self.dice.once_in(2);
        self.say(&format!("{node}{}", if dies { ", whose daemon dies" } else { "" }));
        self.beside(node).until_health(node, "degraded").await;
        if dies {
            self.cluster.daemon_mut(node).kill();
            self.cluster.daemon_mut(node).start(&[]);
            let api = self.beside(node);
            until("the daemon to be back on its full disk", async || {
                let seen = api.node(node).await?;
                if seen.connected && seen.health == "degraded" { Ok(()) } else { Err(format!("{seen:?}")) }
            })
            .await;
        }
        let disks = self.disks.as_ref().expect("they were there");
        assert!(disks.is_full(number), "nobody else makes room");
        disks.free(number);
    }

    /// It is offline, and everything that it had runs elsewhere.
    async fn until_given_up(&self, node: &str) {
        self.beside(node).until_health(node, "offline").await;
        self.feed_beside(node, "everything to run elsewhere", |feed| {
            is_off(feed, node) && super::all_run(feed)
        })
        .await;
    }
}
