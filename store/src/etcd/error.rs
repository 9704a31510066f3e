//! Conversion of etcd errors to [`StoreError`].

use std::error::Error as _;

use etcd_client::Error;

use super::super::{LeaseId, StoreError};

// gRPC status codes (grpc.io, "Status codes and their use in gRPC").
const INVALID_ARGUMENT: i32 = 3;
const NOT_FOUND: i32 = 5;
const PERMISSION_DENIED: i32 = 7;
const RESOURCE_EXHAUSTED: i32 = 8;
const FAILED_PRECONDITION: i32 = 9;
const OUT_OF_RANGE: i32 = 11;
const UNIMPLEMENTED: i32 = 12;
const UNAUTHENTICATED: i32 = 16;

/// Classifies an error by the reaction that it requires of the caller. Texts are etcd's own, followed by
/// their causes.
pub(super) fn store_error(error: &Error) -> StoreError {
    let Error::GRpcStatus(status) = error else {
        return match error {
            Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
                StoreError::Unusable(error.to_string())
            }
            Error::LeaseKeepAliveError(text) if text.contains("lease not found") => {
                StoreError::Refused(text.clone())
            }
            Error::TransportError(e) => StoreError::Unreachable(with_causes(e.to_string(), e.source())),
            _ => StoreError::Unreachable(error.to_string()),
        };
    };
    let text = with_causes(status.message().to_owned(), status.source());
    sorted(i32::from(status.code()), text)
}

fn sorted(code: i32, text: String) -> StoreError {
    match code {
        // etcd reports wrong passwords and missing user names as invalid arguments.
        INVALID_ARGUMENT if text.contains("authentication failed") => StoreError::PermissionDenied(format!(
            "{text}; check --etcd-user and the file of --etcd-password-file"
        )),
        INVALID_ARGUMENT if text.contains("user name is empty") => StoreError::PermissionDenied(format!(
            "{text}; this etcd requires --etcd-user and --etcd-password-file, or a certificate"
        )),
        FAILED_PRECONDITION if text.contains("authentication is not enabled") => {
            StoreError::PermissionDenied(format!("{text}; drop --etcd-user or enable authentication in etcd"))
        }
        PERMISSION_DENIED => {
            StoreError::PermissionDenied(format!("{text}; the user lacks a role for these keys"))
        }
        // The alarm NOSPACE: reads and deletes still work.
        RESOURCE_EXHAUSTED if text.contains("space exceeded") => StoreError::Unwritable(format!(
            "{text}; etcdctl compact, etcdctl defrag, then etcdctl alarm disarm (or raise --quota-backend-bytes)"
        )),
        UNAUTHENTICATED => StoreError::PermissionDenied(text),
        INVALID_ARGUMENT | NOT_FOUND | OUT_OF_RANGE | FAILED_PRECONDITION => StoreError::Refused(text),
        UNIMPLEMENTED => StoreError::Unusable(format!("{text}; the server is not etcd 3.4 or newer")),
        _ => StoreError::Unreachable(text),
    }
}

fn with_causes(mut text: String, mut cause: Option<&(dyn std::error::Error + 'static)>) -> String {
    while let Some(error) = cause {
        let own = error.to_string();
        // Wrapping errors repeat the text of the error they wrap.
        if !text.contains(&own) {
            text = format!("{text}: {own}");
        }
        cause = error.source();
    }
    text
}

/// Adds the lease to the error, since etcd does not name the lease that it did not find.
pub(super) fn ended_lease(error: StoreError, lease: Option<LeaseId>) -> StoreError {
    match (error, lease) {
        (StoreError::Refused(text), Some(lease)) if text.contains("lease not found") => {
            StoreError::LeaseEnded(lease)
        }
        (error, _) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_sorted_by_what_can_be_done() {
        // Codes and texts of etcd 3.4.23.
        let denied = [
            (3, "etcdserver: authentication failed, invalid user ID or password", "--etcd-password-file"),
            (3, "etcdserver: user name is empty", "--etcd-user"),
            (7, "etcdserver: permission denied", "role"),
            (9, "etcdserver: authentication is not enabled", "drop --etcd-user"),
            (16, "etcdserver: invalid auth token", "token"),
        ];
        for (code, text, hint) in denied {
            let StoreError::PermissionDenied(text_of) = sorted(code, text.into()) else { panic!("{text}") };
            assert!(text_of.contains(hint), "{text_of}");
        }
        for (code, text) in [
            (3, "etcdserver: duplicate key given in txn request"),
            (3, "etcdserver: request is too large"),
            (11, "etcdserver: mvcc: required revision is a future revision"),
        ] {
            assert!(matches!(sorted(code, text.into()), StoreError::Refused(_)), "{text}");
        }
        for (code, text) in [
            (14, "etcdserver: no leader"),
            (14, "tcp connect error"),
            (8, "etcdserver: too many requests"),
            (4, "context deadline exceeded"),
            (2, "h2 protocol error"),
        ] {
            assert!(matches!(sorted(code, text.into()), StoreError::Unreachable(_)), "{text}");
        }
        let full = sorted(8, "etcdserver: mvcc: database space exceeded".into());
        assert!(matches!(full, StoreError::Unwritable(_)), "a store that answers is not away: {full}");
        let lease = LeaseId(7);
        let gone = sorted(5, "etcdserver: requested lease not found".into());
        assert!(matches!(ended_lease(gone, Some(lease)), StoreError::LeaseEnded(l) if l == lease));
    }
}
