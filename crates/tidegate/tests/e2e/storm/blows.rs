//! What may befall a cluster. Each blow begins on a cluster that has everybody, and leaves one.

use reqwest::Method;
use rustix::process::Signal;
use server::view::FeedView;

use crate::{
    drains::{drain_of, until_drain},
    harness::{Api, net::Cut, until},
};

use super::{FEED, NODES, Storm, is_off};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    Drain,
    DrainWithADeath,
    DrainCancelled,
    CoordinatorKilled,
    WorkerKilled,
    WorkerStopped,
    WorkerCut,
}

impl Blow {
    pub const ALL: [Blow; 7] = [
        Blow::Drain,
        Blow::DrainWithADeath,
        Blow::DrainCancelled,
        Blow::CoordinatorKilled,
        Blow::WorkerKilled,
        Blow::WorkerStopped,
        Blow::WorkerCut,
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

    async fn stop_a_worker(&mut self) {
        let node = self.victim();
        self.say(&node);
        self.cluster.daemon(&node).suspend().await;
        self.until_given_up(&node).await;
        self.cluster.daemon(&node).signal(Signal::CONT);
    }

    async fn cut_a_worker(&mut self) {
        let node = self.victim();
        let cut = *self.dice.one_of(&[Cut::Both, Cut::ToNode, Cut::FromNode]);
        let number = 1 + NODES.iter().position(|name| *name == node).expect("one of ours") as u8;
        let Some(net) = &self.net else { return };
        self.say(&format!("{node}: {cut:?}"));
        net.cut(number, cut);
        self.until_given_up(&node).await;
        self.net.as_ref().expect("it was there").mend(number);
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
