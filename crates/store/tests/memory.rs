//! The memory store: the suite, and the faults it can inject.

// clippy takes only the test functions themselves for tests, not what they share
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use store::conformance::Fixture;
use store::memory::{Fault, MemoryStore};
use store::testing::commit_surely;
use store::{Candidate, CommitError, Office, Op, Refusal, Store};

struct Memory(MemoryStore);

#[async_trait]
impl Fixture for Memory {
    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }

    fn is_contested(&self) -> bool {
        true
    }

    fn compacts(&self) -> bool {
        true
    }
}

async fn fixture() -> Memory {
    Memory(MemoryStore::new())
}

store::conformance!(fixture);

async fn elect(store: &MemoryStore, id: &str) -> Office {
    let campaign = store.office(&Candidate::new(id, ""), Duration::from_secs(600)).await.unwrap();
    campaign.elected().unwrap()
}

#[tokio::test]
async fn every_lost_answer_is_resolved_by_reading_the_head() {
    let store = MemoryStore::new();
    let office = elect(&store, "a").await;
    let faults = [
        Fault::LoseAnswer,
        Fault::LoseRequest,
        Fault::Late,
        Fault::Unavailable,
        Fault::SpaceExhausted,
        Fault::SpaceExhaustedAfterApplying,
    ];
    for (n, fault) in (1..).zip(faults) {
        store.inject(fault);
        commit_surely(&store, &office, n, &[Op::put("n/one", n.to_string())]).await.unwrap();
        assert_eq!(store.head().await.unwrap(), n, "after {fault:?}");
    }
}

#[tokio::test]
async fn a_late_transaction_that_was_sent_again_meanwhile_is_not_applied_twice() {
    let store = MemoryStore::new();
    let office = elect(&store, "a").await;
    store.inject(Fault::Late);
    let ops = [Op::put("n/one", "1")];
    assert!(matches!(store.commit(&office, 1, &ops).await, Err(CommitError::Unknown { .. })));
    assert_eq!(store.head().await.unwrap(), 0);
    store.commit(&office, 1, &ops).await.unwrap();
    store.commit(&office, 2, &[Op::put("n/one", "2")]).await.unwrap();
    assert_eq!(store.deliver_late(), 0);
    assert_eq!(store.head().await.unwrap(), 2);
}

#[tokio::test]
async fn a_late_transaction_that_lands_before_its_repetition_makes_that_say_so() {
    let store = MemoryStore::new();
    let office = elect(&store, "a").await;
    store.inject(Fault::Late);
    let ops = [Op::put("n/one", "1")];
    assert!(store.commit(&office, 1, &ops).await.unwrap_err().may_be_applied());
    assert_eq!(store.head().await.unwrap(), 0);
    assert_eq!(store.deliver_late(), 1);
    match store.commit(&office, 1, &ops).await {
        Err(CommitError::Refused { why: Refusal::HeadIsOther { found: Some(1), .. }, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_late_transaction_of_a_deposed_coordinator_is_never_visible() {
    let store = MemoryStore::new();
    let old = elect(&store, "a").await;
    store.inject(Fault::Late);
    assert!(store.commit(&old, 1, &[Op::put("n/one", "old")]).await.is_err());
    store.depose();
    let new = elect(&store, "b").await;
    assert!(new.term > old.term);
    assert_eq!(store.deliver_late(), 0);
    store.commit(&new, 1, &[Op::put("n/one", "new")]).await.unwrap();
    store.inject(Fault::Refuse);
    assert!(matches!(store.commit(&new, 2, &[]).await, Err(CommitError::Refused { .. })));
}
