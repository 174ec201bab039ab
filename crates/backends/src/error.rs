//! How a call to a backend can fail.

use crate::contract::StoreId;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// Nobody answered, or not in time. What was asked may have happened.
    #[error("{operation}: {whom} cannot be reached: {why}")]
    Unreachable { operation: &'static str, whom: String, why: String },
    /// The backend answered no, in its own words.
    #[error("{operation}: {whom} refused: {words}")]
    Refused { operation: &'static str, whom: String, words: String },
    #[error("{operation}: the backend knows no store {store}")]
    NotFound { operation: &'static str, store: StoreId },
    /// Asked for what cannot be done as things stand; nothing was touched.
    #[error("{operation}: not possible: {why}")]
    NotPossible { operation: &'static str, why: String },
}
