//! The PD backend against a real PD, which has no TiKV: what it answers before there is one. Skipped with a word on
//! stderr where there is no pd-server.

use backends::testing::PdServer;
use backends::{Backend, BackendError, Pd, StoreId};

#[tokio::test]
async fn a_pd_without_a_cluster_tells_its_replicas_and_refuses_the_rest_in_its_own_words() {
    let Some(server) = PdServer::start().await else { return };
    let pd = Pd::new(server.config());
    assert_eq!(pd.replicas().await, Ok(3));
    let store = StoreId("1".to_owned());
    for answer in [
        pd.members().await.err(),
        pd.state(&store, None).await.err(),
        pd.preflight(&store).await.err(),
        pd.identify("127.0.0.1:20160").await.err(),
    ] {
        match answer {
            Some(BackendError::Refused { words, .. }) => {
                assert!(words.contains("ErrNotBootstrapped"), "{words}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_pd_without_a_cluster_has_no_evictors() {
    let Some(server) = PdServer::start().await else { return };
    let pd = Pd::new(server.config());
    match pd.evictors(&StoreId("1".to_owned())).await {
        Ok(found) => assert_eq!(found.evictors, []),
        Err(BackendError::Refused { words, .. }) => assert!(words.contains("ErrNotBootstrapped"), "{words}"),
        Err(other) => panic!("{other:?}"),
    }
}
