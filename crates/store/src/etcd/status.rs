//! What an error of etcd, or of the connection to it, says about the call that met it.
//!
//! The texts are etcd's (api/v3rpc/rpctypes/error.go); gRPC codes alone do not tell them apart.

use std::error::Error;

use tonic::{Code, Status};

use crate::contract::BYTES_PER_TXN_MAX;
use crate::error::{CommitError, StoreError};

const NO_SPACE: &str = "etcdserver: mvcc: database space exceeded";
const NO_LEADER: &str = "etcdserver: no leader";
const TOO_MANY_REQUESTS: &str = "etcdserver: too many requests";
const REQUEST_TOO_LARGE: &str = "etcdserver: request is too large";
const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
const LEASE_NOT_FOUND: &str = "etcdserver: requested lease not found";

/// Whether the server said so itself and another member would say the same.
pub(super) fn is_final(status: &Status) -> bool {
    match status.code() {
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::DataLoss
        | Code::Unauthenticated => true,
        Code::ResourceExhausted => status.message() != TOO_MANY_REQUESTS,
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable => false,
    }
}

pub(super) fn is_compacted(status: &Status) -> bool {
    status.message() == COMPACTED
}

pub(super) fn is_lease_gone(status: &Status) -> bool {
    status.message() == LEASE_NOT_FOUND
}

/// The innermost cause, which is what a person looks for.
pub(super) fn brief(status: &Status) -> String {
    let mut innermost: Option<&(dyn Error + 'static)> = status.source();
    while let Some(cause) = innermost.and_then(Error::source) {
        innermost = Some(cause);
    }
    innermost.map_or_else(|| status.message().to_owned(), ToString::to_string)
}

/// What a failed transaction means. Whatever is not known to be decided is unknown: the caller then asks
/// for the head, which costs one read, where a wrong "not applied" would cost the state.
///
/// `status` is `None` when no answer came in time.
pub(super) fn of_commit(head: u64, bytes: usize, place: String, status: Option<Status>) -> CommitError {
    let Some(status) = status else {
        return CommitError::Unknown { head, source: "no answer in time".into() };
    };
    if never_sent(&status) {
        return CommitError::Unavailable { head, source: Box::new(status) };
    }
    match (status.code(), status.message()) {
        // checked before the request is looked at, because every request of ours asks for a leader
        (Code::Unavailable, NO_LEADER) => CommitError::Unavailable { head, source: Box::new(status) },
        // said before it is proposed
        (Code::ResourceExhausted, TOO_MANY_REQUESTS) => {
            CommitError::Unavailable { head, source: Box::new(status) }
        }
        // said before proposing, instead of applying, and after applying: see CommitError
        (Code::ResourceExhausted, NO_SPACE) => CommitError::SpaceExhausted { head, source: Box::new(status) },
        // etcd's own check, and that of its gRPC library for messages beyond it
        (Code::InvalidArgument, REQUEST_TOO_LARGE) | (Code::ResourceExhausted, _) => {
            CommitError::TooLarge { head, bytes, max: BYTES_PER_TXN_MAX }
        }
        _ if is_final(&status) => {
            let source = StoreError::Rejected { operation: "committing", place, source: Box::new(status) };
            CommitError::Broken { head, source }
        }
        // request timed out, leader changed, server stopped, connection broken: proposed, perhaps
        _ => CommitError::Unknown { head, source: Box::new(status) },
    }
}

/// Whether the connection could not be made, so that the request never left.
fn never_sent(status: &Status) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = status.source();
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commit(code: Code, message: &str) -> CommitError {
        of_commit(7, 100, "etcd".to_owned(), Some(Status::new(code, message)))
    }

    #[test]
    fn only_what_is_known_to_precede_the_proposal_counts_as_not_sent() {
        assert!(matches!(commit(Code::Unavailable, NO_LEADER), CommitError::Unavailable { .. }));
        assert!(matches!(
            commit(Code::ResourceExhausted, TOO_MANY_REQUESTS),
            CommitError::Unavailable { .. }
        ));
        let doubtful = [
            (Code::Unavailable, "etcdserver: request timed out"),
            (Code::Unavailable, "etcdserver: request timed out, possibly due to previous leader failure"),
            (Code::Unavailable, "etcdserver: request timed out, possibly due to connection lost"),
            (Code::Unavailable, "etcdserver: leader changed"),
            (Code::Unavailable, "etcdserver: server stopped"),
            (Code::Unknown, "raft proposal dropped"),
            (Code::Unknown, "transport error"),
            (Code::Cancelled, "h2 protocol error"),
            (Code::Internal, "h2 protocol error"),
            (Code::DeadlineExceeded, "context deadline exceeded"),
        ];
        for (code, message) in doubtful {
            assert!(matches!(commit(code, message), CommitError::Unknown { .. }), "{code:?} {message}");
        }
        assert!(matches!(of_commit(7, 100, String::new(), None), CommitError::Unknown { .. }));
    }

    #[test]
    fn lack_of_space_leaves_the_outcome_open() {
        let error = commit(Code::ResourceExhausted, NO_SPACE);
        assert!(matches!(error, CommitError::SpaceExhausted { .. }) && error.may_be_applied());
    }

    #[test]
    fn what_no_retry_mends_is_told_apart() {
        assert!(matches!(commit(Code::InvalidArgument, REQUEST_TOO_LARGE), CommitError::TooLarge { .. }));
        assert!(matches!(
            commit(Code::PermissionDenied, "etcdserver: permission denied"),
            CommitError::Broken { .. }
        ));
    }
}
